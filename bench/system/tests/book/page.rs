//! A page of documentation: its text with included files, and its blocks, code spans, links and headings.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Faults, tree};

/// Folder of the book's pages, relative to the root of the project.
const BOOK: &str = "deploy/book/src";

#[derive(Clone, Debug)]
pub struct Line {
    pub text: String,
    /// File, relative to the root of the project, and line number, for messages.
    pub place: String,
}

/// A fenced block of code on a page.
#[derive(Clone, Debug)]
pub struct Block {
    /// First word after the fence; empty if there is none.
    pub language: String,
    pub lines: Vec<Line>,
}

/// A page of documentation, with the lines of included files.
#[derive(Clone, Debug)]
pub struct Page {
    /// Path relative to the root of the project.
    pub path: PathBuf,
    pub lines: Vec<Line>,
    faults: Faults,
}

impl Page {
    /// Reads a page by its path relative to the root of the project.
    pub fn load(path: impl AsRef<Path>) -> Result<Page, String> {
        let path = path.as_ref();
        let mut page = Page { path: path.into(), lines: Vec::new(), faults: Vec::new() };
        page.append(path)?;
        Ok(page)
    }

    fn append(&mut self, path: &Path) -> Result<(), String> {
        let found = tree::trees().iter().map(|tree| tree.join(path)).find(|file| file.is_file());
        let file = found.ok_or_else(|| format!("{} is not there", path.display()))?;
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        for (number, text) in text.lines().enumerate() {
            let place = format!("{}:{}", path.display(), number + 1);
            match included(text) {
                None => self.lines.push(Line { text: text.into(), place }),
                Some(other) => {
                    let other = normal(&path.parent().unwrap_or(Path::new("")).join(other));
                    if let Err(error) = self.append(&other) {
                        self.faults.push(format!("{place}: includes what is missing: {error}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// All pages that the book's table of contents lists.
    pub fn book() -> Vec<Page> {
        let summary = Page::load(format!("{BOOK}/SUMMARY.md")).expect("the table of contents");
        let listed = summary.links().into_iter().map(|(_, target)| format!("{BOOK}/{target}"));
        // Missing pages are reported by the check of the table of contents.
        listed.filter_map(|path| Page::load(path).ok()).collect()
    }

    /// Pages that are missing although the table of contents lists them, and pages that it does not list.
    pub fn faults_of_the_summary() -> Faults {
        let summary = Page::load(format!("{BOOK}/SUMMARY.md")).expect("the table of contents");
        let mut faults = Faults::new();
        let mut listed = HashSet::from([PathBuf::from(format!("{BOOK}/SUMMARY.md"))]);
        for (place, target) in summary.links() {
            let path = Path::new(BOOK).join(&target);
            match Page::load(&path) {
                Err(error) => faults.push(format!("{place}: {error}")),
                Ok(page) => faults.extend(page.faults),
            }
            listed.insert(path);
        }
        let mut folders = vec![PathBuf::from(BOOK)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(tree::root().join(&folder)).expect("a folder of the book").flatten() {
                let path = folder.join(entry.file_name());
                if entry.path().is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md")
                    && !listed.contains(&path)
                {
                    faults.push(format!("{}: not in SUMMARY.md", path.display()));
                }
            }
        }
        faults
    }

    /// Links to pages or headings that do not exist, or that are outside the book.
    pub fn broken_links(&self) -> Faults {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let broken = |target: &str| -> Option<String> {
            if target.starts_with("https://") || target.starts_with("http://") {
                return None;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { self.path.clone() } else { normal(&folder.join(file)) };
            if self.path.starts_with(BOOK) && !path.starts_with(BOOK) {
                return Some("lies outside the book; write its path as code".into());
            }
            if !tree::has(&path.to_string_lossy()) {
                return Some("is not there".into());
            }
            if heading.is_empty() {
                return None;
            }
            let there = Page::load(&path).is_ok_and(|page| page.anchors().contains(heading));
            (!there).then(|| format!("has no heading #{heading}"))
        };
        let links = self.links().into_iter();
        links.filter_map(|(place, target)| Some(format!("{place}: {target} {}", broken(&target)?))).collect()
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for line in &self.lines {
            match (line.text.trim_start().strip_prefix("```"), &mut open) {
                (Some(rest), None) => {
                    let language = rest.split([',', ' ']).next().unwrap_or_default().to_string();
                    open = Some(Block { language, lines: Vec::new() });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.lines.push(line.clone()),
                (None, None) => {}
            }
        }
        blocks
    }

    /// Lines outside of fenced blocks; those of indented blocks begin with four blanks.
    pub fn prose(&self) -> Vec<&Line> {
        let mut inside = false;
        let outside = |line: &&Line| {
            let fence = line.text.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        };
        self.lines.iter().filter(outside).collect()
    }

    /// Code between backticks within lines, each with its position.
    pub fn spans(&self) -> Vec<(String, String)> {
        let of = |line: &Line| {
            spans(&line.text).into_iter().map(|span| (line.place.clone(), span)).collect::<Vec<_>>()
        };
        self.prose().into_iter().flat_map(of).collect()
    }

    /// Code spans of the numbered list below a heading.
    pub fn section_spans(&self, heading: &str) -> Vec<String> {
        let below = self.prose().into_iter().skip_while(|line| line.text != format!("## {heading}")).skip(1);
        let list = below.take_while(|line| !line.text.starts_with('#'));
        let items = list.filter(|line| line.text.starts_with(|first: char| first.is_ascii_digit()));
        items.flat_map(|line| spans(&line.text)).collect()
    }

    /// Targets of links, each with its position.
    pub fn links(&self) -> Vec<(String, String)> {
        let mut links = Vec::new();
        for line in self.prose() {
            let mut rest = without_code(&line.text);
            while let Some((_, after)) = rest.split_once("](") {
                let (target, behind) = after.split_once(')').unwrap_or((after, ""));
                links.push((line.place.clone(), target.to_string()));
                rest = behind.to_string();
            }
        }
        links
    }

    /// Anchors of the page's headings, as mdBook generates them.
    fn anchors(&self) -> HashSet<String> {
        let headings = self.prose().into_iter().filter(|line| line.text.starts_with('#'));
        headings.map(|line| anchor(line.text.trim_start_matches('#'))).collect()
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " _-".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

fn included(line: &str) -> Option<&str> {
    line.trim().strip_prefix("{{#include ")?.strip_suffix("}}").map(str::trim)
}

/// The path with `..` resolved.
fn normal(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(whole.pop()),
            std::path::Component::CurDir => {}
            part => whole.push(part),
        }
    }
    whole
}

/// Code spans of a line, and the line without them.
fn split_code(line: &str) -> (Vec<String>, String) {
    let (mut code, mut prose, mut rest) = (Vec::new(), String::new(), line);
    while let Some(at) = rest.find('`') {
        prose.push_str(&rest[..at]);
        let ticks = rest[at..].chars().take_while(|c| *c == '`').count();
        let (fence, after) = rest[at..].split_at(ticks);
        let Some(end) = after.find(fence) else {
            rest = after;
            break;
        };
        code.push(after[..end].trim().replace("\\|", "|"));
        rest = &after[end + ticks..];
    }
    prose.push_str(rest);
    (code, prose)
}

fn spans(line: &str) -> Vec<String> {
    split_code(line).0
}

fn without_code(line: &str) -> String {
    split_code(line).1
}

#[test]
fn a_page_is_taken_apart() {
    assert_eq!(spans("a `b c` and `` d ` e `` x"), ["b c", "d ` e"]);
    assert_eq!(without_code("[`a](b)` x](c)"), "[ x](c)");
    assert_eq!(anchor(" What happens, when?"), "what-happens-when");
    assert_eq!(included("{{#include ../../a.md}}"), Some("../../a.md"));
    assert_eq!(normal(Path::new("a/b/../../c/./d")), PathBuf::from("c/d"));
}
