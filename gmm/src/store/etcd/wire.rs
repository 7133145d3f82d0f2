//! The messages of etcd's JSON gateway that the store uses (etcd v3 API, `/v3/...`). Bytes are base64. In answers,
//! 64-bit numbers are strings, and fields with default values are omitted.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Step of a transaction that sets a key.
pub fn put(key: &str, value: &str) -> Value {
    json!({"request_put": {"key": bytes(key), "value": bytes(value)}})
}

/// Step of a transaction that sets a key until a lease ends.
pub fn put_until(key: &str, value: &str, lease: i64) -> Value {
    json!({"request_put": {"key": bytes(key), "value": bytes(value), "lease": lease}})
}

/// Step of a transaction that reads a key.
pub fn read(key: &str) -> Value {
    json!({"request_range": {"key": bytes(key)}})
}

/// Step of a transaction that deletes a key.
pub fn delete(key: &str) -> Value {
    json!({"request_delete_range": {"key": bytes(key)}})
}

/// Step of a transaction that deletes the keys from `first` to below `end`.
pub fn delete_span(first: &str, end: &str) -> Value {
    json!({"request_delete_range": {"key": bytes(first), "range_end": bytes(end)}})
}

/// Condition that a key was created at `revision`; 0: that the key does not exist.
pub fn created_at(key: &str, revision: i64) -> Value {
    json!({"target": "CREATE", "key": bytes(key), "create_revision": revision})
}

/// Condition that a key was last set at `revision`; 0: that the key does not exist.
pub fn set_at(key: &str, revision: i64) -> Value {
    json!({"target": "MOD", "key": bytes(key), "mod_revision": revision})
}

/// Encodes a text as the gateway expects bytes: in base64.
pub fn bytes(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

/// The key that follows all keys which start with `folder`; `folder` ends with a slash.
pub fn end_of(folder: &str) -> String {
    format!("{}0", folder.trim_end_matches('/'))
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let bytes =
        BASE64_STANDARD.decode(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// Header of every answer.
#[derive(Debug, Deserialize)]
pub struct Header {
    /// Revision of etcd's key space at the answer.
    #[serde(deserialize_with = "number")]
    pub revision: i64,
}

/// A key of etcd with its value, revisions and lease.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct KeyValue {
    /// The whole key, with the prefix of the fabric.
    #[serde(deserialize_with = "text")]
    pub key: String,
    /// Revision at which the key was created; later writes do not change it.
    #[serde(deserialize_with = "number")]
    pub create_revision: i64,
    /// Revision at which the key was last set.
    #[serde(deserialize_with = "number")]
    pub mod_revision: i64,
    #[serde(deserialize_with = "text")]
    pub value: String,
    /// Identifier of the lease that the key is bound to; 0: none.
    #[serde(deserialize_with = "number")]
    pub lease: i64,
}

/// Keys that a read has found.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeAnswer {
    /// The keys found, ascending, with their values.
    pub kvs: Vec<KeyValue>,
    /// True if the range has further keys, beyond the limit.
    pub more: bool,
}

/// Result of one step of a transaction.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StepAnswer {
    /// The keys read, if the step was a read.
    response_range: RangeAnswer,
}

/// Result of a transaction.
#[derive(Debug, Deserialize)]
pub struct TxnAnswer {
    /// Header with etcd's revision after the transaction.
    pub header: Header,
    /// True if all conditions held, so that the transaction's steps were carried out.
    #[serde(default)]
    pub succeeded: bool,
    /// Results of the steps that were carried out, in order.
    #[serde(default)]
    responses: Vec<StepAnswer>,
}

impl TxnAnswer {
    /// The first key in the result of the step with this index.
    pub fn found(&self, index: usize) -> Option<&KeyValue> {
        self.responses.get(index).and_then(|step| step.response_range.kvs.first())
    }
}

/// Answer to the grant or renewal of a lease.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseGranted {
    /// Identifier that etcd gave the lease.
    #[serde(rename = "ID", deserialize_with = "number")]
    pub id: i64,
    /// Seconds until the lease ends; 0: it has ended.
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub ttl_s: i64,
}

/// One message of a watch.
#[derive(Debug, Deserialize)]
pub struct WatchAnswer {
    /// The message itself; an error has none.
    pub result: WatchResult,
}

/// Content of a message of a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchResult {
    /// Changes of the key; none in the message that begins the watch.
    pub events: Vec<serde::de::IgnoredAny>,
    /// True if etcd has ended the watch.
    pub canceled: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_leaves_out_has_its_default() {
        let answer: TxnAnswer = serde_json::from_value(json!({
            "header": {"revision": "12", "raft_term": "2"},
            "responses": [{"response_range": {"kvs": [{"key": "YQ==", "mod_revision": "3"}], "count": "1"}}, {}],
        }))
        .unwrap();
        assert!(!answer.succeeded && answer.header.revision == 12);
        let found = answer.found(0).unwrap();
        assert_eq!((found.key.as_str(), found.mod_revision, found.value.as_str()), ("a", 3, ""));
        assert!(answer.found(1).is_none() && answer.found(2).is_none());
        let over: LeaseGranted = serde_json::from_value(json!({"ID": "123"})).unwrap();
        assert_eq!(over.ttl_s, 0);
    }
}
