//! Exit code of a node that ends with an error. The systemd units do not restart a node that ended with
//! [`Exit::Usage`] (`RestartPreventExitStatus=`).

use std::error::Error;

use cxloe_daemon::command_line::Exit;
use cxloe_link::LinkError;

/// Exit code for `error` if a link caused it: [`Exit::Usage`] if the next start would fail in the same way.
///
/// A `supervised` node waits for its interface before it opens links. If the interface has disappeared by then, it may
/// return, so the node is to be started again.
pub fn exit_of_link(error: &(dyn Error + 'static), supervised: bool) -> Exit {
    match error.downcast_ref::<LinkError>() {
        Some(LinkError::NoSuchInterface(_)) if supervised => Exit::Failed,
        Some(error) if error.is_lasting() => Exit::Usage,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervised_node_is_started_again_for_an_interface_that_may_return() {
        let gone = || -> Box<dyn Error> { LinkError::NoSuchInterface("eth7".into()).into() };
        let down: Box<dyn Error> = LinkError::Down("eth7".into()).into();
        let refused: Box<dyn Error> =
            LinkError::Permission { what: "open", interface: "eth7".into(), needs: "rights" }.into();
        assert_eq!(exit_of_link(&*gone(), false), Exit::Usage);
        assert_eq!(exit_of_link(&*gone(), true), Exit::Failed);
        assert_eq!(exit_of_link(&*down, false), Exit::Failed);
        assert_eq!(exit_of_link(&*refused, true), Exit::Usage);
        assert_eq!(exit_of_link(&*Box::<dyn Error>::from("other"), false), Exit::Failed);
    }
}
