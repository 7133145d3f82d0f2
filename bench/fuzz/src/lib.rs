//! Fuzz targets: invariants that must hold for arbitrary bytes from a socket or a ring, one function for each
//! reader.
//!
//! | target | reader | input |
//! |---|---|---|
//! | `fm_api` | the manager's FM API | MCTP packets over TCP |
//! | `nbd` | `cn-agent nbd` | bytes from an NBD client |
//! | `agent_message` | the agent's socket | requests of programs |
//! | `hostile_client` | the agent's worker | rings that a client changes between the agent's steps |

mod fm;
mod hostile_client;
mod nbd;
mod program;

pub use fm::fm_api;
pub use hostile_client::hostile_client;
pub use nbd::nbd;
pub use program::agent_message;
