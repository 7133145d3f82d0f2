//! Converts failures to the exceptions of the Python package. An exception has the text that the command line
//! prints, a kind for programs, and the number of an operation's status.
//!
//! The classes are written in Python (`cxloe/_errors.py`): the stable interface of the interpreter lets a
//! library derive classes of its own from exceptions only from Python 3.12 on.

use cxloe_client::client::ClientError;
use cxloe_client::mapping::MapError;
use cxloe_client::message::RefusalReason;
use cxloe_client::status::Status;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Failure of a call, which is then converted to a Python exception.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A request to the agent failed.
    #[error(transparent)]
    Agent(ClientError),
    /// A mapping was not made, or a request for one failed.
    #[error(transparent)]
    Mapping(MapError),
    #[error("the connection to the agent is closed; connect again")]
    NodeClosed,
    #[error("the mapping is closed; map the region again")]
    MappingClosed,
    #[error(
        "this connection is of the process that opened it, not of its child by fork; connect in the child"
    )]
    NodeOfParent,
    #[error(
        "this mapping is of the process that made it, not of its child by fork; map the region in the child"
    )]
    MappingOfParent,
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        Failure::Agent(error)
    }
}

impl From<MapError> for Failure {
    fn from(error: MapError) -> Failure {
        match error {
            MapError::Agent(error) => Failure::Agent(error),
            other => Failure::Mapping(other),
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let words = failure.to_string();
        let kind = match &failure {
            Failure::Agent(ClientError::Engine(error)) => {
                let (code, _) = Status::Failed(*error).encode();
                return exception("AccessError", words, &kind_of(error), Some(code));
            }
            Failure::Agent(ClientError::Refused { reason, .. }) => kind_of_refusal(reason),
            Failure::Agent(error) => kind_of(error),
            Failure::Mapping(error) => kind_of(error),
            Failure::NodeClosed | Failure::MappingClosed => "closed".into(),
            Failure::NodeOfParent | Failure::MappingOfParent => "forked".into(),
        };
        exception("AgentError", words, &kind, None)
    }
}

/// Name of a variant, from its debug form, in snake case: `NotConnected(…)` is `not_connected`.
fn kind_of(error: &impl std::fmt::Debug) -> String {
    let form = format!("{error:?}");
    let name = form.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let mut kind = String::with_capacity(name.len() + 2);
    for (i, c) in name.char_indices() {
        if c.is_ascii_uppercase() && i > 0 {
            kind.push('_');
        }
        kind.push(c.to_ascii_lowercase());
    }
    kind
}

/// Kind of a refusal: the manager's code, if the agent passes on an answer of the manager.
fn kind_of_refusal(reason: &RefusalReason) -> String {
    match reason {
        RefusalReason::Manager { code: Some(code), .. } => kind_of(code),
        reason => kind_of(reason),
    }
}

/// Creates an exception of the class `class` of `cxloe._errors`.
fn exception(class: &str, words: String, kind: &str, code: Option<u32>) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import("cxloe._errors")
            .and_then(|module| module.getattr(class))
            .and_then(|class| class.cast_into::<PyType>()?.call1((words, kind, code)));
        match made {
            Ok(exception) => PyErr::from_value(exception),
            // The package is incomplete, or memory is short: the program gets this error in place of the exception.
            Err(error) => error,
        }
    })
}
