//! The messages of etcd's JSON gateway that the store uses (etcd v3 API, `/v3/...`): bytes are base64, 64-bit numbers are
//! strings, and what has its default value is left out of answers.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes, base64 in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// As text, for messages.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Bytes {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// A 64-bit number, a string in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Number(pub i64);

impl TryFrom<String> for Number {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl From<Number> for String {
    fn from(number: Number) -> Self {
        number.0.to_string()
    }
}

/// A condition on one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "target", rename_all = "UPPERCASE")]
pub enum Compare {
    /// The revision at which the key was created; 0: it is not there.
    Create {
        /// The key.
        key: Bytes,
        /// The revision.
        create_revision: Number,
    },
    /// The revision at which the key was last put; 0: it is not there.
    Mod {
        /// The key.
        key: Bytes,
        /// The revision.
        mod_revision: Number,
    },
}

/// Sets a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// The lease it goes with; 0: none.
    pub lease: Number,
}

/// Asks for keys, or names keys to be deleted: one, or all from `key` to below `range_end`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The key, or the first one.
    pub key: Bytes,
    /// The first key beyond; empty: only `key`.
    pub range_end: Bytes,
    /// At most so many; 0: all. Not for deleting.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub limit: Number,
    /// As of this revision; 0: now. Not for deleting.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub revision: Number,
}

fn is_zero(number: &Number) -> bool {
    number.0 == 0
}

impl Range {
    /// One key.
    pub fn one(key: impl Into<Bytes>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// The keys from `key` to below `end`.
    pub fn span(key: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { key: key.into(), range_end: end.into(), ..Self::default() }
    }

    /// Every key that starts with `folder`, which ends with a slash.
    pub fn under(folder: &str) -> Self {
        let end = format!("{}0", folder.trim_end_matches('/'));
        Self::span(folder, end)
    }
}

/// One step of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Set a key.
    #[serde(rename = "request_put")]
    Put(Put),
    /// Delete keys.
    #[serde(rename = "request_delete_range")]
    Delete(Range),
    /// Ask for keys.
    #[serde(rename = "request_range")]
    Range(Range),
}

impl Step {
    /// Sets `key` for good.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put(Put { key: key.into(), value: value.into(), lease: Number(0) })
    }

    /// Its share of a request in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put(put) => put.key.0.len() + put.value.0.len(),
            Self::Delete(range) | Self::Range(range) => range.key.0.len() + range.range_end.0.len(),
        }
    }
}

/// A transaction: `success` if every comparison holds, else `failure`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Txn {
    /// What must hold.
    pub compare: Vec<Compare>,
    /// What is done then.
    pub success: Vec<Step>,
    /// What is done otherwise.
    pub failure: Vec<Step>,
}

/// The head of every answer.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Header {
    /// The store's revision.
    #[serde(default)]
    pub revision: Number,
}

/// A key and its value.
#[derive(Debug, Clone, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The revision at which it was created.
    #[serde(default)]
    pub create_revision: Number,
    /// The revision at which it was last put.
    #[serde(default)]
    pub mod_revision: Number,
    /// Its value.
    #[serde(default)]
    pub value: Bytes,
    /// The lease it goes with.
    #[serde(default)]
    pub lease: Number,
}

/// The keys asked for.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct RangeAnswer {
    /// Them.
    #[serde(default)]
    pub kvs: Vec<KeyValue>,
    /// Whether there are more.
    #[serde(default)]
    pub more: bool,
}

/// What became of a step.
#[derive(Debug, Clone, Deserialize)]
pub struct StepAnswer {
    /// The keys, if it was a question.
    #[serde(default)]
    pub response_range: RangeAnswer,
}

/// What became of a transaction.
#[derive(Debug, Clone, Deserialize)]
pub struct TxnAnswer {
    /// The head.
    pub header: Header,
    /// Whether the comparisons held.
    #[serde(default)]
    pub succeeded: bool,
    /// One for each step of the half that was done.
    #[serde(default)]
    pub responses: Vec<StepAnswer>,
}

impl TxnAnswer {
    /// The first key that step `index` found.
    pub fn found(&self, index: usize) -> Option<&KeyValue> {
        self.responses.get(index).and_then(|step| step.response_range.kvs.first())
    }
}

/// Names a lease.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LeaseId {
    /// Which.
    #[serde(rename = "ID")]
    pub id: Number,
}

/// Asks for a lease.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LeaseGrant {
    /// Seconds without renewal after which it ends.
    #[serde(rename = "TTL")]
    pub ttl_s: Number,
}

/// A lease, granted or renewed.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct LeaseGranted {
    /// Which.
    #[serde(rename = "ID", default)]
    pub id: Number,
    /// Seconds it lasts from now; 0: it is over.
    #[serde(rename = "TTL", default)]
    pub ttl_s: Number,
}

/// A message of a stream.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Streamed<T> {
    /// The message.
    pub result: T,
}

/// An answer that is none of the above: nothing in it is used.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Ignored {}

/// Why a request failed.
#[derive(Debug, Clone, Deserialize)]
pub struct Failure {
    /// In words.
    #[serde(default)]
    pub message: String,
    /// gRPC's status code.
    #[serde(default)]
    pub code: i32,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_transaction_is_what_the_gateway_reads() {
        let txn = Txn {
            compare: vec![Compare::Create { key: "a".into(), create_revision: Number(7) }],
            success: vec![Step::put("a", "b"), Step::Delete(Range::under("x/"))],
            failure: vec![Step::Range(Range::one("a"))],
        };
        let wanted = json!({
            "compare": [{"target": "CREATE", "key": "YQ==", "create_revision": "7"}],
            "success": [
                {"request_put": {"key": "YQ==", "value": "Yg==", "lease": "0"}},
                {"request_delete_range": {"key": "eC8=", "range_end": "eDA="}},
            ],
            "failure": [{"request_range": {"key": "YQ==", "range_end": ""}}],
        });
        assert_eq!(serde_json::to_value(&txn).unwrap(), wanted);
        let text = serde_json::to_string(&txn.success).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Step>>(&text).unwrap(), txn.success);
    }

    #[test]
    fn what_an_answer_leaves_out_has_its_default() {
        let answer: TxnAnswer = serde_json::from_value(json!({
            "header": {"revision": "12", "raft_term": "2"},
            "responses": [{"response_range": {"kvs": [{"key": "YQ==", "mod_revision": "3"}], "count": "1"}}, {}],
        }))
        .unwrap();
        assert!(!answer.succeeded && answer.header.revision == Number(12));
        let found = answer.found(0).unwrap();
        assert_eq!((found.key.text().as_str(), found.mod_revision, found.value.0.len()), ("a", Number(3), 0));
        assert!(answer.found(1).is_none() && answer.found(2).is_none());
        let over: Streamed<LeaseGranted> = serde_json::from_value(json!({"result": {"ID": "123"}})).unwrap();
        assert_eq!(over.result.ttl_s, Number(0));
    }
}
