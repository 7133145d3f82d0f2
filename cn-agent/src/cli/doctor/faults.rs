//! Checks whether programs can map remote memory: the kernel's support of userfaultfd, and the agent's rights over
//! other users' programs. Reads and writes of lines through a port need neither of the two.

use cxloe_cn_core::mapped::MappingKind;
use cxloe_daemon::doctor::permissions::{Process, SYS_PTRACE};
use cxloe_daemon::doctor::{Check, Group};
use cxloe_paging::memory::required_features;
use cxloe_paging::uffd::{FaultScope, Features, OpenError, Probe, probe};

/// Sysctl that permits unprivileged users to handle page faults that occur inside system calls.
const SYSCTL: &str = "vm.unprivileged_userfaultfd";

/// Checks userfaultfd and the capability `CAP_SYS_PTRACE`, and returns the two results.
pub fn examine(process: &Process) -> Vec<Check> {
    vec![judge_faults(&probe()), judge_others(process.lacks(&[SYS_PTRACE]))]
}

/// Assesses the kernel's support of userfaultfd for this user.
fn judge_faults(found: &Result<Probe, OpenError>) -> Check {
    let (group, name) = (Group::Permissions, "page faults");
    let probe = match found {
        Ok(probe) => probe,
        Err(error @ OpenError::Forbidden { .. }) => {
            let advice = format!(
                "without it no program has remote memory mapped. Start it as the service cn-agent, whose user may open \
                 /dev/userfaultfd (udev rule 60-cxloe.rules), or: setfacl -m u:USER:rw /dev/userfaultfd; or for everybody: \
                 sysctl -w {SYSCTL}=1"
            );
            return Check::warn(group, name, error.to_string(), advice);
        }
        Err(error) => {
            let advice =
                "without it no program has remote memory mapped; use a kernel with CONFIG_USERFAULTFD";
            return Check::warn(group, name, error.to_string(), advice);
        }
    };
    let all = required_features(MappingKind::Shared).0
        | required_features(MappingKind::Private).0
        | Features::SIGBUS;
    if let Err(missing) = probe.require(all) {
        let advice = "mapped regions, `exec` or virtual machines do not work in part; a newer kernel has what is missing";
        return Check::warn(group, name, missing.to_string(), advice);
    }
    match probe.way {
        FaultScope::AllFaults => Check::ok(group, name, "userfaultfd, with all that paging takes"),
        FaultScope::UserFaultsOnly => {
            let advice = format!(
                "system calls on mapped pages that are not here fail with EFAULT: let this user open /dev/userfaultfd \
                 (setfacl -m u:USER:rw /dev/userfaultfd), or sysctl -w {SYSCTL}=1"
            );
            Check::warn(group, name, "userfaultfd for faults of user mode alone", advice)
        }
    }
}

/// Assesses whether programs of other users can be served; `lacking` names the missing capabilities.
fn judge_others(lacking: Option<String>) -> Check {
    let (group, name) = (Group::Permissions, "programs of others");
    match lacking {
        None => Check::ok(group, name, "SYS_PTRACE"),
        Some(missing) => Check::warn(
            group,
            name,
            format!("{missing} missing"),
            "programs under `cn-agent exec` cannot fork: start the agent as the service cn-agent, whose unit gives it this, \
             or as root",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;
    use cxloe_paging::uffd::Ioctls;
    use nix::errno::Errno;

    fn offering(features: Features, way: FaultScope) -> Result<Probe, OpenError> {
        Ok(Probe { features, ioctls: Ioctls::empty(), way, limit: None, scan: true })
    }

    #[test]
    fn all_faults_with_all_features_are_well() {
        let all = Features::all();
        assert_eq!(judge_faults(&offering(all, FaultScope::AllFaults)).level, Level::Ok);
        let limited = judge_faults(&offering(all, FaultScope::UserFaultsOnly));
        assert_eq!(limited.level, Level::Warn);
        assert!(limited.advice.unwrap().contains("/dev/userfaultfd"));
    }

    #[test]
    fn what_is_missing_is_named_with_the_kernel_that_has_it() {
        let old =
            judge_faults(&offering(Features::all() - Features::WRITE_PROTECT_SHMEM, FaultScope::AllFaults));
        assert_eq!(old.level, Level::Warn);
        assert!(old.found.contains("WRITE_PROTECT_SHMEM") && old.found.contains("5.19"), "{}", old.found);
        let forbidden = OpenError::Forbidden { device: Errno::EACCES, call: Errno::EPERM };
        assert!(judge_faults(&Err(forbidden)).advice.unwrap().contains("vm.unprivileged_userfaultfd=1"));
        assert!(
            judge_faults(&Err(OpenError::NoKernelSupport)).advice.unwrap().contains("CONFIG_USERFAULTFD")
        );
    }

    #[test]
    fn programs_of_others_take_capabilities() {
        assert_eq!(judge_others(None).level, Level::Ok);
        let lacking = judge_others(Some("CAP_SYS_PTRACE".into()));
        assert_eq!((lacking.level, lacking.found.as_str()), (Level::Warn, "CAP_SYS_PTRACE missing"));
    }
}
