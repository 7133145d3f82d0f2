//! Commands as lines that a shell reads.

/// Command with the variables that are set for it, each word quoted where a shell needs that.
pub fn line(variables: &[(String, String)], words: &[String]) -> String {
    let variables = variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    let words = words.iter().map(|word| quoted(word));
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

/// Word in single quotes if it has other characters than those that no shell treats specially. `$` stays as it is: it
/// begins the names of folders that a reader has to put in.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+$".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_a_shell_reads() {
        let words = ["redis_server", "--save", "", "it's", "a b", "$TRIAL/x"].map(str::to_owned);
        let variables = [("A".to_owned(), "b c".to_owned())];
        let line = line(&variables, &words);
        assert_eq!(line, r"A='b c' redis_server --save '' 'it'\''s' 'a b' $TRIAL/x");
        let script = format!("TRIAL=/t; redis_server() {{ printf '%s|' \"$@\"; }}; {line}");
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "--save||it's|a b|/t/x|");
    }
}
