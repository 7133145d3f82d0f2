//! Rare behaviour of programs, shown by small C programs, each of which checks its results and prints `ok`.

#![expect(unsafe_code, reason = "same-page merging is set between fork and exec")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use cxloe_lab::expect_error;

use super::run::{Ended, MIB, Sizes, compiled, nothing_is_left, rig, start, start_prepared, text};
use cxloe_system::pair::{CN, Outcome, ensure};

/// Runs a C program with remote memory; the program's checks have to pass.
fn checked(name: &str, sizes: Sizes, arguments: &[&str]) -> Outcome<Ended> {
    checked_with(name, sizes, &[], arguments)
}

fn checked_with(name: &str, sizes: Sizes, more: &[&str], arguments: &[&str]) -> Outcome<Ended> {
    let rig = rig()?;
    let program = compiled(&rig, name, &[])?;
    let command: Vec<&str> = [text(&program)].into_iter().chain(arguments.iter().copied()).collect();
    let ended = start(&rig, sizes, more, &command)?.wait()?.well()?;
    ensure(ended.text().ends_with("ok\n"), format!("it said {:?}, {}", ended.text(), ended.err))?;
    nothing_is_left(&rig)?;
    Ok(ended)
}

/// Parent, child and grandchild write the same pages at the same time, under the lowest resident limit.
pub fn forks_keep_their_meaning() -> Outcome {
    let ended = checked("forks", Sizes(64, 1), &["3"])?.paged(8 * MIB)?;
    let forks = ended.view.map_or(0, |view| view.counters.forks);
    ensure(forks == 6, format!("{forks} forks"))
}

pub fn three_hundred_children_live_at_a_time() -> Outcome {
    checked("alive", Sizes(64, 4), &["300"]).map(drop)
}

/// The kernel does not release a robust lock (`set_robust_list(2)`) whose page is evicted. The lock has to be
/// released nevertheless when its holder ends.
pub fn robust_locks_are_released_wherever_their_page_is() -> Outcome {
    checked("robust", Sizes(64, 1), &[])?.paged(16 * MIB).map(drop)
}

pub fn forks_beside_threads_that_allocate() -> Outcome {
    checked("forks", Sizes(64, 2), &["3", "2"])?.paged(4 * MIB).map(drop)
}

pub fn parts_of_mappings_are_changed() -> Outcome {
    checked("mappings", Sizes(96, 2), &[])?.paged(4 * MIB).map(drop)
}

/// The program changes its mappings by bare system calls, past the functions of the preloaded library; its
/// memory has to keep the right content.
pub fn bare_system_calls_are_followed() -> Outcome {
    checked("bare", Sizes(128, 4), &[])?.paged(64 * MIB).map(drop)
}

pub fn the_kernel_reads_and_writes_the_heap() -> Outcome {
    checked("kernel", Sizes(64, 1), &[])?.paged(4 * MIB).map(drop)
}

/// New memory is filled with zeros without any frame. Pages are fetched before the program accesses them if the program
/// has announced their use by `madvise`.
pub fn programs_say_what_they_will_need() -> Outcome {
    let ended = checked("hints", Sizes(64, 32), &[])?;
    let counted = ended.view.ok_or("no figures")?.counters;
    ensure(
        counted.zero_fills > 0 && counted.fetched == 0,
        format!("somebody waited for frames: {counted:#?}"),
    )?;
    ensure(counted.evicted >= 2048 && counted.prefetched >= 1024, format!("{counted:#?}"))
}

/// A program starts other programs by vfork, posix_spawn and system. Each of these programs runs, with remote memory or
/// without, and ends.
pub fn programs_start_programs() -> Outcome {
    checked("starts", Sizes(64, 1), &[])?.paged(3 * MIB).map(drop)
}

/// Children that a program creates by other calls than `fork(3)` have remote memory too, whether they allocate memory
/// or not.
pub fn children_of_other_makes_are_followed() -> Outcome {
    for way in ["_Fork", "raw", "clone", "clone3"] {
        checked("children", Sizes(64, 2), &[way])
            .map_err(|error| format!("{way}: {error:?}"))?
            .paged(4 * MIB)?;
    }
    Ok(())
}

/// When a program changes its user, its helper thread gives up the former user's rights too, and can still reach the
/// agent for the program's children.
pub fn helpers_give_up_rights_with_their_program() -> Outcome {
    let rig = rig()?;
    for (place, mode) in [(rig.dir.path().to_path_buf(), 0o755), (rig.socket(), 0o666)] {
        std::fs::set_permissions(place, PermissionsExt::from_mode(mode))?;
    }
    let program = compiled(&rig, "rights", &[])?;
    let ended = start(&rig, Sizes(64, 1), &[], &[text(&program), "user"])?.wait()?.well()?.paged(4 * MIB)?;
    ensure(ended.text() == "ok\n", ended.err)?;
    // setpriv changes its user through the C library, which does not change the preloaded library's helper thread.
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/id", "-u"];
    let ended = start(&rig, Sizes(16, 1), &[], &user)?.wait()?.well()?;
    ensure(ended.text() == "65534\n", ended.err)?;
    nothing_is_left(&rig)
}

pub fn a_program_enters_a_user_namespace() -> Outcome {
    checked("rights", Sizes(64, 1), &["namespace"])?.paged(4 * MIB)?;
    let rig = rig()?;
    let ended = start(&rig, Sizes(16, 1), &[], &["unshare", "-Ur", "/usr/bin/id", "-u"])?.wait()?.well()?;
    ensure(ended.text() == "0\n", ended.err)?;
    nothing_is_left(&rig)
}

/// Runs the program `copies`, in which one of two processes changes pages, in a region of a compute node with a quota
/// of `quota` MiB.
fn copies(quota: u64, more: &[&str], arguments: &[&str]) -> Outcome<Ended> {
    let rig = rig()?;
    rig.gmm(&["set-quota", CN, &format!("{quota}M")])?;
    let program = compiled(&rig, "copies", &[])?;
    let command: Vec<&str> = [text(&program)].into_iter().chain(arguments.iter().copied()).collect();
    let ended = start(&rig, Sizes(32, 2), more, &command)?.wait()?.well()?;
    ensure(ended.text() == "ok\n", format!("it said {:?}, {}", ended.text(), ended.err))?;
    nothing_is_left(&rig)?;
    Ok(ended)
}

/// Same-page merging (KSM) would remove the write protection of paged memory. Merging has to stay off for that memory,
/// even if it is on for each new process (`prctl(PR_SET_MEMORY_MERGE)`, as some distributions set it).
pub fn pages_are_not_merged() -> Outcome {
    let rig = rig()?;
    let program = compiled(&rig, "merging", &[])?;
    // SAFETY: the closure makes one system call on plain values.
    let inherit = |exec: &mut Command| unsafe {
        // 67 is PR_SET_MEMORY_MERGE.
        exec.pre_exec(|| match libc::prctl(67, 1, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    };
    let merges = is_merging_inherited()?;
    for inherited in [false, merges] {
        let command = [text(&program), if inherited { "inherited" } else { "" }];
        let running = start_prepared(&rig, Sizes(64, 4), &[], &command, |exec| {
            if inherited {
                inherit(exec);
            }
        })?;
        let ended = running.wait()?.well()?;
        ensure(ended.text() == "ok\n", format!("it said {:?}, {}", ended.text(), ended.err))?;
    }
    nothing_is_left(&rig)
}

/// True if an executed program inherits same-page merging from the process that executes it (Linux 6.7).
fn is_merging_inherited() -> Outcome<bool> {
    let mut probe = Command::new("grep");
    probe.args(["-q", "^VmFlags:.* mg", "/proc/self/smaps"]);
    // SAFETY: the closure makes one system call on plain values.
    unsafe {
        probe.pre_exec(|| {
            libc::prctl(67, 1, 0, 0, 0);
            Ok(())
        });
    }
    Ok(probe.status()?.success())
}

/// If a region has no room for changed pages, the youngest process is ended. Its status and the messages name
/// the reason, and why the region does not grow.
pub fn a_full_region_ends_the_youngest() -> Outcome {
    expect_error("the region has had no room for its pages for too long");
    let ended = copies(32, &["--lost-wait", "3s"], &[])?;
    let told = |words: &str| ended.err.lines().filter(|line| line.contains(words)).count();
    let refused = told("is full and does not grow: ");
    let why = told(": it has 32.00 MiB (33.55 MB), and 2.00 MiB (2.10 MB) more were asked for");
    ensure((told("its remote memory is full"), refused, why) == (1, 1, 1), ended.err)
}

/// A region grows as far as the quota permits, here by less than half its size; both processes read their own
/// data.
pub fn a_full_region_grows_where_the_quota_allows() -> Outcome {
    let ended = copies(46, &["--lost-wait", "20s"], &["both"])?;
    let view = ended.view.ok_or("no figures")?;
    let grown = (36 * MIB..=46 * MIB).contains(&view.bytes);
    ensure(grown && view.counters.no_slot > 0, format!("{view:#?}"))?;
    ensure(!ended.err.contains("is full"), ended.err)
}

/// Data that another program has left in a named region does not appear in pages that are mostly zeros.
pub fn a_region_used_before_is_as_a_new_one() -> Outcome {
    let rig = rig()?;
    rig.gmm(&["create-region", "used", "-s", "32M", "--owner", CN, "--wait"])?;
    let run = |program: &str| -> Outcome<String> {
        let command = ["exec", "--region", "used", "--local", "6M", "--", "python3", "-c", program];
        cxloe_system::pair::succeeded(rig.cli(&command)?)
    };
    run("x = bytearray(b'x') * (20 << 20); print(x.count(b'x'))")?;
    let output_text =
        run("x = bytearray(20 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint(sum(x))")?;
    ensure(output_text == "5120\n", output_text)
}

pub fn descriptors_may_all_be_closed() -> Outcome {
    checked("descriptors", Sizes(64, 1), &[])?.paged(3 * MIB).map(drop)
}

/// Children share the pages that they inherit. Each page is written back once, whichever child evicts it
/// first, and fetched once for several children that scan it at the same time. Pages that are mapped writable
/// and never written take no room in the region.
pub fn children_have_in_common_what_they_do_not_change() -> Outcome {
    const CHILDREN: u64 = 8;
    const PAGES: u64 = 4096;
    let ended = checked("many", Sizes(96, 4), &[&CHILDREN.to_string()])?;
    let counted = ended.view.ok_or("no figures")?.counters;
    // At least one write-back is necessary for each of the parent's pages, and for a tenth of them in each child. Twice
    // as many are permitted, because a page may be evicted before a child has written all its words.
    let least = PAGES + CHILDREN * PAGES / 10;
    ensure(counted.written_back <= 2 * least, format!("sent again and again: {counted:#?}"))?;
    ensure(counted.shared >= PAGES / 4 && counted.copied > 0, format!("{counted:#?}"))
}

/// The system call `exit` ends one thread: the process's status is that of its first thread, and its other threads
/// complete their work.
pub fn programs_end_with_their_last_thread() -> Outcome {
    let rig = rig()?;
    let program = compiled(&rig, "leaves", &[])?;
    for (way, code, output_text) in [
        ("bare", 7, ""),
        ("strict", 7, ""),
        ("thread", 7, "worked\n"),
        ("pthread", 0, "worked\n"),
        ("child", 7, ""),
    ] {
        let ended = start(&rig, Sizes(32, 2), &[], &[text(&program), way])?.wait()?.paged(4 * MIB)?;
        let right = ended.status.code() == Some(code) && ended.text() == output_text;
        ensure(right, format!("{way}: {}, it said {:?}, {}", ended.status, ended.text(), ended.err))?;
    }
    nothing_is_left(&rig)
}

/// Plug-ins share the program's heap, whether they are opened with `RTLD_DEEPBIND` or found by the run path of the
/// program that opens them.
pub fn plug_ins_share_the_heap_however_they_are_opened() -> Outcome {
    let rig = rig()?;
    let plugin = compiled(&rig, "plugin", &["-shared", "-fPIC"])?;
    let folder = rig.path("plug-ins");
    std::fs::create_dir(&folder)?;
    std::fs::rename(plugin, folder.join("plugin"))?;
    let program = compiled(&rig, "plugins", &["-Wl,-rpath,$ORIGIN/plug-ins", "-rdynamic"])?;
    let ended =
        start(&rig, Sizes(64, 4), &[], &[text(&program), "plugin"])?.wait()?.well()?.paged(2 * MIB)?;
    // A symbol defined in program and plug-in resolves to the program's.
    let output_text = ended.text();
    ensure(output_text == "shared name 5\nok\n", output_text)?;
    nothing_is_left(&rig)
}

/// Heaps that are reserved first and committed later, such as Java's, become remote when they are committed,
/// even if they take most of the region.
pub fn reserved_addresses_become_remote_when_they_are_committed() -> Outcome {
    let ended = checked("reserved", Sizes(64, 2), &["24"])?.paged(24 * MIB)?;
    ensure(!ended.err.contains("local:"), ended.err)
}

/// Memory that does not fit into the region stays local, and a message reports that.
pub fn what_stays_in_this_machine_is_told() -> Outcome {
    let ended = checked("reserved", Sizes(48, 2), &["100"])?;
    let told = ended.err.contains("cn-agent: local: ") && ended.err.contains("try a larger --size");
    ensure(told, format!("nothing of local memory: {:?}", ended.err))
}

/// A debugger that reads absent pages gets their content or an error, but never zeros instead of the content.
pub fn pages_that_are_away_are_not_seen_as_zeros() -> Outcome {
    checked("looked_at", Sizes(64, 1), &[])?.paged(MIB / 4).map(drop)
}
