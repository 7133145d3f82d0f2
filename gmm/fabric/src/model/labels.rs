//! Labels of a region: keys with values that people choose, by which regions are found.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum number of labels of a region.
pub const LABELS_MAX: usize = 32;
/// Maximum number of characters of a key, and of a value.
pub const LABEL_LEN_MAX: usize = 63;

/// Labels by key. A key has 1 to 63 ASCII letters, digits, `.`, `_`, `-` or `/`, the first a letter or a digit; a
/// value has 0 to 63 of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Labels(BTreeMap<String, String>);

/// A text that cannot be a label or a selector of labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The key has other characters, or too many.
    #[error(
        "{0:?} cannot be the key of a label: use 1 to {LABEL_LEN_MAX} letters, digits, '.', '_', '-' or '/', starting with a letter or a digit"
    )]
    Key(String),
    /// The value has other characters, or too many.
    #[error(
        "{0:?} cannot be the value of a label: use at most {LABEL_LEN_MAX} letters, digits, '.', '_', '-' or '/'"
    )]
    Value(String),
    /// Too many labels.
    #[error("{0} labels are too many: a region has at most {LABELS_MAX}")]
    Many(usize),
    /// No `=` where one is required.
    #[error("{0:?} is no label: write it as key=value")]
    NoValue(String),
}

fn is_in_alphabet(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/');
    text.len() <= LABEL_LEN_MAX && text.bytes().all(letter)
}

fn check_key(key: &str) -> Result<(), LabelError> {
    let starts_well = key.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if starts_well && is_in_alphabet(key) { Ok(()) } else { Err(LabelError::Key(key.to_owned())) }
}

fn check_value(value: &str) -> Result<(), LabelError> {
    if is_in_alphabet(value) { Ok(()) } else { Err(LabelError::Value(value.to_owned())) }
}

impl Labels {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns keys and values in ascending order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Returns the value of the label `key`; `None` if there is no such label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns these labels without the keys in `remove`, and with those of `set`.
    ///
    /// # Errors
    /// [`LabelError::Many`] if these are more than [`LABELS_MAX`].
    pub fn changed(&self, set: &Labels, remove: &[String]) -> Result<Labels, LabelError> {
        let mut labels = self.0.clone();
        labels.retain(|key, _| !remove.contains(key));
        labels.extend(set.0.clone());
        Labels::try_from(labels)
    }
}

impl TryFrom<BTreeMap<String, String>> for Labels {
    type Error = LabelError;

    fn try_from(labels: BTreeMap<String, String>) -> Result<Self, LabelError> {
        if labels.len() > LABELS_MAX {
            return Err(LabelError::Many(labels.len()));
        }
        for (key, value) in &labels {
            check_key(key)?;
            check_value(value)?;
        }
        Ok(Self(labels))
    }
}

impl From<Labels> for BTreeMap<String, String> {
    fn from(labels: Labels) -> Self {
        labels.0
    }
}

impl TryFrom<Vec<Label>> for Labels {
    type Error = LabelError;

    fn try_from(labels: Vec<Label>) -> Result<Self, LabelError> {
        labels.into_iter().map(|Label { key, value }| (key, value)).collect::<BTreeMap<_, _>>().try_into()
    }
}

impl fmt::Display for Labels {
    /// Writes `key=value`, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().enumerate().try_for_each(|(index, (key, value))| {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{key}={value}")
        })
    }
}

/// One label, written as `key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub key: String,
    pub value: String,
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let (key, value) = text.split_once('=').ok_or_else(|| LabelError::NoValue(text.to_owned()))?;
        check_key(key)?;
        check_value(value)?;
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

/// Conditions on labels, separated by commas, all of which have to hold: `key=value`, `key!=value`, `key` (there is such
/// a label) or `!key` (there is none).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabelSelector(Vec<LabelCondition>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelCondition {
    key: String,
    /// `None`: any value.
    value: Option<String>,
    /// True for a condition that the label is absent, or that its value is not `value`.
    negated: bool,
}

impl LabelSelector {
    /// Returns true if the labels meet every condition.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.0.iter().all(|condition| {
            let found = labels.get(&condition.key);
            let holds = match &condition.value {
                Some(value) => found == Some(value),
                None => found.is_some(),
            };
            holds != condition.negated
        })
    }
}

impl FromStr for LabelSelector {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let condition = |text: &str| {
            let text = text.trim();
            let (negated, key, value) =
                match (text.strip_prefix('!'), text.split_once("!="), text.split_once('=')) {
                    (Some(key), ..) => (true, key, None),
                    (_, Some((key, value)), _) => (true, key, Some(value)),
                    (_, _, Some((key, value))) => (false, key, Some(value)),
                    _ => (false, text, None),
                };
            check_key(key)?;
            value.map_or(Ok(()), check_value)?;
            Ok(LabelCondition { key: key.to_owned(), value: value.map(str::to_owned), negated })
        };
        text.split(',')
            .filter(|part| !part.trim().is_empty())
            .map(condition)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl TryFrom<String> for LabelSelector {
    type Error = LabelError;

    fn try_from(text: String) -> Result<Self, LabelError> {
        text.parse()
    }
}

impl From<LabelSelector> for String {
    fn from(selector: LabelSelector) -> Self {
        let conditions = selector.0.iter().map(|condition| {
            let LabelCondition { key, value, negated } = condition;
            match (value, negated) {
                (Some(value), false) => format!("{key}={value}"),
                (Some(value), true) => format!("{key}!={value}"),
                (None, false) => key.clone(),
                (None, true) => format!("!{key}"),
            }
        });
        conditions.collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Labels {
        text.split(',').map(|label| label.parse().unwrap()).collect::<Vec<Label>>().try_into().unwrap()
    }

    #[test]
    fn labels_are_checked_when_they_are_read() {
        for (text, error) in [
            ("use", "write it as key=value"),
            ("=x", "cannot be the key"),
            ("-a=x", "cannot be the key"),
            ("a b=x", "cannot be the key"),
            ("a=x y", "cannot be the value"),
        ] {
            assert!(text.parse::<Label>().unwrap_err().to_string().contains(error), "{text}");
        }
        let long = "x".repeat(LABEL_LEN_MAX + 1);
        assert!(
            format!("a={long}").parse::<Label>().is_err() && format!("{long}=a").parse::<Label>().is_err()
        );
        let json = r#"{"lab.example/use":"training","empty":""}"#;
        let read: Labels = serde_json::from_str(json).unwrap();
        assert_eq!(read.to_string(), "empty=,lab.example/use=training");
        assert!(serde_json::from_str::<Labels>(r#"{"a":"b c"}"#).is_err());
        let many: BTreeMap<String, String> =
            (0..=LABELS_MAX).map(|n| (n.to_string(), String::new())).collect();
        assert_eq!(Labels::try_from(many), Err(LabelError::Many(LABELS_MAX + 1)));
    }

    #[test]
    fn labels_change_one_by_one() {
        let before = labels("a=1,b=2,c=3");
        let after = before.changed(&labels("b=4,d=5"), &["a".into(), "none".into()]).unwrap();
        assert_eq!(after, labels("b=4,c=3,d=5"));
    }

    #[test]
    fn selectors_select() {
        let of = labels("use=training,team=a,old=");
        for text in
            ["", "use", "use=training", "use=training,team=a", "!gone", "team!=b", " old , old= ", "gone!=x"]
        {
            assert!(text.parse::<LabelSelector>().unwrap().selects(&of), "{text}");
        }
        for text in ["gone", "use=serving", "use,team=b", "!use", "team!=a", "old=x"] {
            assert!(!text.parse::<LabelSelector>().unwrap().selects(&of), "{text}");
        }
        assert!("a b".parse::<LabelSelector>().is_err() && "=x".parse::<LabelSelector>().is_err());
        let text = String::from("a=1,b!=2,c,!d").parse::<LabelSelector>().map(String::from);
        assert_eq!(text.as_deref(), Ok("a=1,b!=2,c,!d"));
    }
}
