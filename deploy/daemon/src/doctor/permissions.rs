//! Capabilities and limits of a daemon, judged for its links and its memory: those that its systemd unit gives it, or
//! without a unit those of this process.

use crate::Unit;
use crate::doctor::{Check, Group, Host, size};

/// Receive queue that a `udp` link asks for, in bytes.
const UDP_QUEUE_BYTES: u64 = 8 << 20;

/// A capability, by its number (capability(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    number: u32,
    name: &'static str,
}

/// Changing network interfaces and attaching XDP programs.
pub(crate) const NET_ADMIN: Capability = Capability { number: 12, name: "CAP_NET_ADMIN" };
/// Opening raw sockets.
pub(crate) const NET_RAW: Capability = Capability { number: 13, name: "CAP_NET_RAW" };
/// Locking memory beyond the limit.
pub(crate) const IPC_LOCK: Capability = Capability { number: 14, name: "CAP_IPC_LOCK" };
/// Using a device by vfio without an IOMMU.
pub(crate) const SYS_RAWIO: Capability = Capability { number: 17, name: "CAP_SYS_RAWIO" };
/// Handling page faults and reading memory of other processes.
pub const SYS_PTRACE: Capability = Capability { number: 19, name: "CAP_SYS_PTRACE" };
/// Seeing the physical addresses of memory.
pub(crate) const SYS_ADMIN: Capability = Capability { number: 21, name: "CAP_SYS_ADMIN" };
/// Loading BPF programs into the kernel.
pub(crate) const BPF: Capability = Capability { number: 39, name: "CAP_BPF" };

const CAPABILITIES: [Capability; 7] = [NET_ADMIN, NET_RAW, IPC_LOCK, SYS_RAWIO, SYS_PTRACE, SYS_ADMIN, BPF];

/// Bytes of the frame memory that one AF_XDP socket locks, at most: 1536 chunks of 4 KiB.
const XDP_LOCKED: u64 = 1536 * 4096;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Xdp {
    /// The operator requires AF_XDP.
    Must,
    /// AF_XDP is preferred; other links work as well.
    #[default]
    May,
    /// The operator asked for another link.
    Not,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Effective capabilities, the bit of each by its number.
    pub effective: u64,
    /// Bytes that the process may lock (RLIMIT_MEMLOCK); `None`: no limit.
    pub lockable: Option<u64>,
    /// Number of files that the process may have open: the hard limit (RLIMIT_NOFILE), to which daemons raise theirs.
    pub files: u64,
    /// True in a user namespace other than the initial one; XDP programs cannot be loaded there.
    pub in_user_namespace: bool,
    /// Systemd unit that starts the process; `None` for this process itself.
    pub unit: Option<String>,
}

impl Process {
    /// Reads capabilities and limits of this process from `host`.
    pub fn read(host: &Host) -> Process {
        let status = host.text("proc/self/status").unwrap_or_default();
        let limits = host.text("proc/self/limits").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        // The soft limit comes first, then the hard one.
        let limit = |name: &str, column: usize| {
            let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().nth(column).map(str::to_owned)
        };
        let users = host.text("proc/self/uid_map").unwrap_or_default();
        let all: Vec<&str> = users.split_whitespace().collect();
        Process {
            effective: effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0),
            lockable: limit("Max locked memory", 0).map_or(Some(0), |limit| match limit.as_str() {
                "unlimited" => None,
                number => Some(number.parse().unwrap_or(0)),
            }),
            files: limit("Max open files", 1).map_or(0, |limit| limit.parse().unwrap_or(u64::MAX)),
            // The initial namespace maps all user ids to themselves.
            in_user_namespace: !users.is_empty() && all != ["0", "0", "4294967295"],
            unit: None,
        }
    }

    /// Capabilities and limits that `unit` gives the process that it starts.
    pub fn of_unit(unit: &Unit) -> Process {
        // A process of another user than root has only the ambient capabilities.
        let is_root = ["", "root", "0"].contains(&unit.property("User"));
        let given = if is_root { "CapabilityBoundingSet" } else { "AmbientCapabilities" };
        let given: Vec<String> = unit.property(given).split_whitespace().map(str::to_uppercase).collect();
        let has = |capability: &Capability| given.iter().any(|name| name == capability.name);
        // A limit that systemd does not report does not exist.
        let limit = |name: &str| unit.property(name).parse::<u64>().ok().filter(|limit| *limit != u64::MAX);
        Process {
            effective: CAPABILITIES
                .iter()
                .filter(|capability| has(capability))
                .fold(0, |mask, capability| mask | 1 << capability.number),
            lockable: limit("LimitMEMLOCKSoft"),
            files: limit("LimitNOFILE").unwrap_or(u64::MAX),
            in_user_namespace: false,
            unit: Some(unit.name.clone()),
        }
    }

    /// Check that names the unit or process whose capabilities and limits are judged.
    pub fn judge_whose(&self) -> Check {
        let found = match &self.unit {
            Some(unit) => format!("those that systemd gives {unit}"),
            None => "those of this process: no systemd unit here runs this configuration".to_owned(),
        };
        Check::ok(Group::Permissions, "rights and limits", found)
    }

    /// Advice to raise a limit: by `setting` in the unit, or by `shell` before the start.
    fn raise(&self, setting: &str, shell: &str) -> String {
        match &self.unit {
            Some(unit) => format!("raise the limit: systemctl edit {unit}, and below [Service] {setting}"),
            None => format!("raise the limit: {shell}; in a unit {setting}"),
        }
    }

    pub fn has(&self, capability: Capability) -> bool {
        self.effective >> capability.number & 1 == 1
    }

    pub(crate) fn may_lock(&self, bytes: u64) -> bool {
        self.has(IPC_LOCK) || self.lockable.is_none_or(|limit| limit >= bytes)
    }

    /// Names of the capabilities among `wanted` that the process lacks; `None` if it has all.
    pub fn lacks(&self, wanted: &[Capability]) -> Option<String> {
        let names: Vec<&str> = wanted
            .iter()
            .filter(|capability| !self.has(**capability))
            .map(|capability| capability.name)
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Judges whether the process may open `queues` links for `daemon`; `xdp` states whether they use AF_XDP.
    pub fn judge_links(&self, daemon: &str, xdp: Xdp, queues: u64) -> Vec<Check> {
        let group = Group::Permissions;
        let mut checks = Vec::new();
        if self.has(NET_RAW) {
            checks.push(Check::ok(group, "raw frames", NET_RAW.name));
        } else {
            let advice = format!(
                "start it as the service {daemon}, whose unit gives it what it needs, or as root; or give the program \
                 what it needs: setcap cap_net_raw,cap_net_admin,cap_bpf+ep $(command -v {daemon})"
            );
            checks.push(Check::fail(group, "raw frames", format!("{} is missing", NET_RAW.name), advice));
        }
        let name = "AF_XDP";
        let locked = XDP_LOCKED * queues;
        let (found, advice) = if self.in_user_namespace {
            (
                "this is a user namespace, in which no XDP program can be loaded".to_owned(),
                "run it outside".to_owned(),
            )
        } else if let Some(missing) = self.lacks(&[NET_ADMIN, BPF]) {
            let advice = format!("give it {missing} too, as the unit of the service {daemon} does");
            (format!("{missing} missing"), advice)
        } else if !self.may_lock(locked) {
            let limit = self.lockable.map_or_else(String::new, size);
            let advice = self.raise("LimitMEMLOCK=infinity", "ulimit -l unlimited");
            (format!("{limit} may be locked, its rings take {}", size(locked)), advice)
        } else {
            checks.push(Check::ok(group, name, "NET_ADMIN, BPF, memory to lock"));
            return checks;
        };
        checks.push(match xdp {
            Xdp::Must => Check::fail(group, name, found, format!("{advice}; or take `link = auto`")),
            Xdp::May => {
                Check::warn(group, name, format!("{found}: packet rings it is, a microsecond slower"), advice)
            }
            Xdp::Not => Check::ok(group, name, "not asked for"),
        });
        checks
    }

    /// Judges whether the kernel allows a UDP link its receive queue of 8 MiB: room for a window of bursts and the
    /// kernel's overhead.
    pub fn judge_udp(&self, host: &Host) -> Check {
        let (group, name) = (Group::Permissions, "UDP receive queue");
        if self.has(NET_ADMIN) && !self.in_user_namespace {
            return Check::ok(group, name, format!("{}: as long as the link needs it", NET_ADMIN.name));
        }
        let most: u64 = host.number("proc/sys/net/core/rmem_max").unwrap_or(0);
        let found = format!("{} at most (net.core.rmem_max)", size(most));
        if most >= UDP_QUEUE_BYTES {
            return Check::ok(group, name, found);
        }
        let advice = format!(
            "bulk transfers lose frames and send them again; let it be longer: sysctl -w net.core.rmem_max={UDP_QUEUE_BYTES}"
        );
        Check::warn(group, name, found, advice)
    }

    pub fn judge_lock(&self, name: &str, bytes: u64) -> Check {
        self.judge_locking(name, bytes, "; or do without locking")
    }

    /// Judges whether the process may lock `bytes`; `otherwise` is what the operator can do instead of raising the limit.
    pub(crate) fn judge_locking(&self, name: &str, bytes: u64, otherwise: &str) -> Check {
        if self.may_lock(bytes) {
            return Check::ok(Group::Permissions, name, format!("{} may be locked", size(bytes)));
        }
        let limit = self.lockable.map_or_else(String::new, size);
        let found = format!("{limit} may be locked, {} is to be", size(bytes));
        let raise = self.raise("LimitMEMLOCK=infinity", "ulimit -l unlimited");
        Check::fail(Group::Permissions, name, found, format!("{raise}{otherwise}"))
    }

    pub fn judge_files(&self, wanted: u64) -> Check {
        let (name, found) = ("open files", format!("{} at a time, {wanted} wanted", self.files));
        if self.files >= wanted {
            return Check::ok(Group::Permissions, name, found);
        }
        let advice = self.raise(&format!("LimitNOFILE={wanted}"), &format!("ulimit -n {wanted}"));
        Check::warn(Group::Permissions, name, found, advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::doctor::host::described;

    fn with(capabilities: &[Capability]) -> Process {
        let effective = capabilities.iter().fold(0, |mask, capability| mask | 1 << capability.number);
        Process { effective, lockable: None, files: 1024, in_user_namespace: false, unit: None }
    }

    fn levels(process: &Process, xdp: Xdp) -> [Level; 2] {
        let checks = process.judge_links("mn-server", xdp, 1);
        [checks[0].level, checks[1].level]
    }

    #[test]
    fn a_short_udp_queue_is_warned_of_where_it_cannot_be_made_longer() {
        let level = |most: &str, process: &Process| {
            let (_root, host) = described(&[("proc/sys/net/core/rmem_max", most)]);
            process.judge_udp(&host).level
        };
        assert_eq!(level("212992", &with(&[])), Level::Warn);
        assert_eq!(level("8388608", &with(&[])), Level::Ok);
        assert_eq!(level("212992", &with(&[NET_ADMIN])), Level::Ok);
    }

    #[test]
    fn a_process_is_read_from_proc() {
        let (_root, host) = described(&[
            ("proc/self/status", "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000008000003000\n"),
            (
                "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max open files            1024                 524288               files\n\
                 Max locked memory         8388608              8388608              bytes\n",
            ),
            ("proc/self/uid_map", "         0          0 4294967295\n"),
        ]);
        let read = Process::read(&host);
        assert!(read.has(NET_RAW) && read.has(NET_ADMIN) && read.has(BPF) && !read.has(SYS_PTRACE));
        assert_eq!((read.lockable, read.files, read.in_user_namespace), (Some(8 << 20), 524_288, false));
        let (_root, host) = described(&[
            (
                "proc/self/limits",
                "Max locked memory         unlimited            unlimited            bytes\n",
            ),
            ("proc/self/uid_map", "0 1000 1\n"),
        ]);
        let read = Process::read(&host);
        assert_eq!((read.lockable, read.in_user_namespace, read.effective), (None, true, 0));
    }

    #[test]
    fn a_unit_gives_what_it_names() {
        let shown = "LoadState=loaded\nUser=cxloe\nAmbientCapabilities=cap_net_raw cap_bpf\n\
                     CapabilityBoundingSet=cap_net_raw cap_net_admin cap_bpf\nLimitMEMLOCKSoft=infinity\n\
                     LimitNOFILE=65536\n";
        let of = |shown: &str| Process::of_unit(&Unit::parse("mn-server.service", shown).unwrap());
        let unit = of(shown);
        assert!(unit.has(NET_RAW) && unit.has(BPF) && !unit.has(NET_ADMIN), "{unit:?}");
        assert_eq!((unit.lockable, unit.files, unit.in_user_namespace), (None, 65536, false));
        assert!(unit.judge_whose().found.ends_with("mn-server.service"));
        assert_eq!(unit.judge_files(65536).level, Level::Ok);
        let more = unit.judge_files(65537).advice.unwrap();
        assert!(more.contains("systemctl edit mn-server.service") && more.contains("LimitNOFILE=65537"));
        let root = of(&shown.replace("User=cxloe", "User=").replace("infinity", "65536"));
        assert!(root.has(NET_ADMIN) && root.lockable == Some(65536), "{root:?}");
        let locked = root.judge_lock("pool", 1 << 20);
        assert!(locked.level == Level::Fail && locked.advice.unwrap().contains("LimitMEMLOCK=infinity"));
        assert!(with(&[]).judge_whose().found.contains("this process"));
    }

    #[test]
    fn without_raw_frames_nothing_works() {
        let none = with(&[]);
        assert_eq!(levels(&none, Xdp::Not), [Level::Fail, Level::Ok]);
        let checks = none.judge_links("mn-server", Xdp::Not, 1);
        assert!(checks[0].advice.as_ref().unwrap().contains("setcap cap_net_raw"));
    }

    #[test]
    fn missing_af_xdp_rights_fail_or_warn_by_choice_of_link() {
        let full = with(&[NET_RAW, NET_ADMIN, BPF]);
        assert_eq!(levels(&full, Xdp::Must), [Level::Ok, Level::Ok]);
        for poor in [
            with(&[NET_RAW, NET_ADMIN]),
            Process { in_user_namespace: true, ..full.clone() },
            Process { lockable: Some(64 << 10), ..full.clone() },
        ] {
            let of = |xdp| levels(&poor, xdp)[1];
            assert_eq!(
                [of(Xdp::Must), of(Xdp::May), of(Xdp::Not)],
                [Level::Fail, Level::Warn, Level::Ok],
                "{poor:?}"
            );
        }
        // The rings of each queue take memory, which counts towards the limit of locked memory.
        let tight = Process { lockable: Some(8 << 20), ..full };
        let level = |queues| tight.judge_links("mn-server", Xdp::Must, queues)[1].level;
        assert_eq!((level(1), level(2)), (Level::Ok, Level::Fail));
    }

    #[test]
    fn limits_and_the_capability_that_lifts_one() {
        let limited = Process { lockable: Some(1 << 20), ..with(&[]) };
        assert_eq!(limited.judge_lock("pool", 2 << 20).level, Level::Fail);
        assert_eq!(limited.judge_lock("pool", 1 << 20).level, Level::Ok);
        let lifted = Process { lockable: Some(0), ..with(&[IPC_LOCK]) };
        assert_eq!(lifted.judge_lock("pool", 1 << 40).level, Level::Ok);
        assert_eq!(
            (limited.judge_files(1024).level, limited.judge_files(1025).level),
            (Level::Ok, Level::Warn)
        );
    }
}
