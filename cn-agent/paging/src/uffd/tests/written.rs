//! Tests of asynchronous write protection: the first write is no fault, but leaves a mark that a scan finds.

use super::memory::Memory;
use super::scan::{Action, Categories, PageRun, Pagemap};
use super::*;

const WRITTEN: Categories = Categories::WRITTEN.union(Categories::PRESENT);

fn written(pagemap: &Pagemap, memory: &Memory, action: Action) -> Vec<(u64, u64)> {
    let mut found = [PageRun::default(); 8];
    let (count, end) = pagemap.scan(memory.all(), WRITTEN, action, &mut found).unwrap();
    assert_eq!(end, memory.all().end);
    let pages = |f: &PageRun| ((f.start - memory.at(0)) / PAGE, (f.end - memory.at(0)) / PAGE);
    found[..count].iter().inspect(|f| assert_eq!(f.categories(), WRITTEN)).map(pages).collect()
}

fn marks(uffd: &Uffd, memory: &Memory) {
    register(uffd, memory, Modes::MISSING | Modes::WRITE_PROTECT);
    uffd.copy(memory.at(0), page_of(1).repeat(6).as_slice(), Access::Protected).unwrap();
    let pagemap = Pagemap::own().unwrap();
    assert_eq!(written(&pagemap, memory, Action::CHECK), []);
    memory.write(1, 2);
    memory.write(4, 2);
    memory.write(5, 2);
    expect_quiet(uffd);
    assert_eq!(written(&pagemap, memory, Action::empty()), [(1, 2), (4, 6)]);
    assert_eq!(written(&pagemap, memory, Action::PROTECT | Action::CHECK), [(1, 2), (4, 6)]);
    assert_eq!(written(&pagemap, memory, Action::empty()), []);
    memory.write(4, 3);
    assert_eq!(written(&pagemap, memory, Action::empty()), [(4, 5)]);
    // With room for one entry only, the scan returns the address that it reached.
    memory.write(0, 3);
    let mut one = [PageRun::default()];
    let (count, end) = pagemap.scan(memory.all(), WRITTEN, Action::empty(), &mut one).unwrap();
    assert_eq!((count, one[0].start, one[0].end), (1, memory.at(0), memory.at(1)));
    assert!(end < memory.all().end);
}

#[test]
fn a_scan_finds_what_was_written_since_the_last_one() {
    let features =
        Features::WRITE_PROTECT_ASYNC | Features::WRITE_PROTECT_UNPOPULATED | Features::MISSING_SHMEM;
    let Some(first) = uffd(features) else { return };
    assert!(scan::is_supported(), "it came with asynchronous write protection");
    marks(&first, &Memory::anonymous(6));
    let second = uffd(features).unwrap();
    let (shared, _alias, _file) = Memory::shared(6);
    marks(&second, &shared);
}

#[test]
fn a_scan_that_checks_refuses_memory_without_marks() {
    if !scan::is_supported() {
        return;
    }
    let memory = Memory::anonymous(1);
    memory.write(0, 1);
    let pagemap = Pagemap::own().unwrap();
    let mut found = [PageRun::default(); 2];
    let refused = pagemap.scan(memory.all(), WRITTEN, Action::CHECK, &mut found).unwrap_err();
    assert!(matches!(refused, UffdError::Os { errno: nix::errno::Errno::EPERM, .. }), "{refused:?}");
    let not_pages = memory.at(0) + 1..memory.at(1);
    assert_eq!(pagemap.scan(not_pages, WRITTEN, Action::empty(), &mut found), Err(UffdError::NotMapped));
}
