//! Check that the glossary and the page of words in the code contain the words that more than one part of the
//! project uses.
//!
//! A type needs an entry when two crates use it, or when two files have a type of that name. A name composed
//! of words in the glossary (`RegionState`) needs no entry of its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::page::Page;
use crate::{Faults, tree};

/// Keywords that begin the definition of a type.
const KEYWORDS: [&str; 4] = ["struct ", "enum ", "trait ", "union "];

/// Names of shared types that contain a word which is not on the pages.
pub fn missing(pages: &[Page]) -> Faults {
    let words = pages.iter().flat_map(words).collect();
    let sources = tree::sources().iter().filter_map(|(path, text)| {
        let path = path.strip_prefix(tree::root()).ok()?.to_str()?;
        let (folder, _) = path.split_once("/src/")?;
        let ours = path.ends_with(".rs") && !path.contains("/tests") && folder != "bench/system";
        ours.then(|| (path, folder, production(text)))
    });
    let shared = shared(sources.collect());
    let faults = shared.into_iter().filter(|(name, _)| !is_covered(&parts(name), &words));
    faults
        .map(|(name, places)| {
            format!("no word for the type {name} in glossary.md or design/words.md: {places}")
        })
        .collect()
}

/// Names of types that two crates use, or that two files define, with the files that define them.
fn shared(sources: Vec<(&str, &str, String)>) -> BTreeMap<String, String> {
    let (mut defined, mut public) = (BTreeMap::<String, Vec<&str>>::new(), BTreeSet::new());
    let mut named = BTreeMap::<String, BTreeSet<&str>>::new();
    for (path, folder, text) in &sources {
        for line in text.lines() {
            if let Some((name, is_public)) = definition(line) {
                defined.entry(name.into()).or_default().push(path);
                if is_public {
                    public.insert(name.to_owned());
                }
            }
            let line = line.split("//").next().unwrap_or(line);
            for word in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
                if word.starts_with(|c: char| c.is_ascii_uppercase()) {
                    named.entry(word.into()).or_default().insert(folder);
                }
            }
        }
    }
    let is_shared = |name: &String, files: &Vec<&str>| {
        let crates = named.get(name).map_or(0, BTreeSet::len);
        files.len() > 1 || (public.contains(name) && crates > 1)
    };
    defined
        .iter()
        .filter(|(name, files)| is_shared(name, files))
        .map(|(name, files)| (name.clone(), files.join(", ")))
        .collect()
}

/// Name of the public type that a line defines, and whether it is public to other crates.
fn definition(line: &str) -> Option<(&str, bool)> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let (is_public, rest) = match rest.strip_prefix('(') {
        Some(inner) => (false, inner.split_once(") ")?.1),
        None => (true, rest.strip_prefix(' ')?),
    };
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let rest = KEYWORDS.iter().find_map(|keyword| rest.strip_prefix(keyword))?;
    let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
    (end > 0).then_some((&rest[..end], is_public))
}

/// Text of a source file without the tests at its end.
fn production(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text[..end].to_owned()
}

/// Heading of the list of words that need no explanation.
const USUAL: &str = "## Words with their usual meaning";

/// Words of the glossary, in lower case as parts of names: the first cells of its tables, and the list below
/// [`USUAL`], split at commas.
fn words(page: &Page) -> BTreeSet<String> {
    let rows = page.lines.iter().filter_map(|line| line.text.strip_prefix("| **")?.split_once("**"));
    let usual = page.lines.iter().skip_while(|line| line.text != USUAL).map(|line| line.text.as_str());
    let words = rows.map(|(cell, _)| cell).chain(usual).flat_map(|cell| cell.split(','));
    words
        .map(|word| word.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase())
        .collect()
}

/// Words that a name consists of: `HdmDecoder` is `hdm`, `decoder`.
fn parts(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut parts: Vec<String> = Vec::new();
    for (at, letter) in letters.iter().enumerate() {
        let after_small = at > 0 && !letters[at - 1].is_uppercase();
        let before_small = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if at == 0 || letter.is_uppercase() && (after_small || before_small) {
            parts.push(String::new());
        }
        parts.last_mut().expect("the first letter begins one").extend(letter.to_lowercase());
    }
    parts
}

/// True if the parts of a name, alone or joined, are words of the glossary, in singular or plural.
fn is_covered(parts: &[String], words: &BTreeSet<String>) -> bool {
    let has = |word: &str| {
        words.contains(word)
            || words.contains(&format!("{word}s"))
            || ["s", "es"].iter().any(|end| word.strip_suffix(end).is_some_and(|word| words.contains(word)))
    };
    parts.is_empty() || (1..=parts.len()).any(|n| has(&parts[..n].concat()) && is_covered(&parts[n..], words))
}

#[test]
fn types_of_two_crates_or_two_files_are_found() {
    let source = |path, folder, text: &str| (path, folder, text.to_owned());
    let found = shared(vec![
        source(
            "a/src/x.rs",
            "a",
            "pub struct Cup(u8);\npub enum Own {}\npub(crate) struct Tea;\npub struct Pot<T>;\n",
        ),
        source("a/src/y.rs", "a", "fn f(own: Own) {}\n    pub(super) trait Tea {}\n"),
        source("b/src/z.rs", "b", "use a::Cup; // and Pot\n"),
    ]);
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["Cup", "Tea"]);
}

#[test]
fn names_are_covered_by_their_words() {
    let words = ["hdmdecoder", "region", "state", "mac"].map(str::to_owned).into();
    assert_eq!(parts("HDMDecoderState2"), ["hdm", "decoder", "state2"]);
    for name in ["HdmDecoder", "RegionState", "Regions", "HdmDecoderState"] {
        assert!(is_covered(&parts(name), &words), "{name}");
    }
    for name in ["Hdm", "RegionCup", "Cup"] {
        assert!(!is_covered(&parts(name), &words), "{name}");
    }
}
