//! Programs that are built with a sanitizer. Its runtime replaces `malloc` and keeps a record of all memory:
//! together with the preloaded library, the runtime either ends the program or detects nothing.

use std::io::{Read, Seek};

use elf::ElfStream;
use elf::abi::DT_NEEDED;
use elf::endian::AnyEndian;

/// A sanitizer, recognised by the beginning of its library's name, or by a function that is linked into the
/// program.
#[derive(Debug)]
struct Sanitizer {
    library: &'static str,
    function: &'static str,
    name: &'static str,
}

const fn sanitizer(library: &'static str, function: &'static str, name: &'static str) -> Sanitizer {
    Sanitizer { library, function, name }
}

const SANITIZERS: [Sanitizer; 5] = [
    sanitizer("libasan.", "__asan_init", "AddressSanitizer"),
    sanitizer("libhwasan.", "__hwasan_init", "HWAddressSanitizer"),
    sanitizer("liblsan.", "__lsan_init", "LeakSanitizer"),
    sanitizer("libmsan.", "__msan_init", "MemorySanitizer"),
    sanitizer("libtsan.", "__tsan_init", "ThreadSanitizer"),
];

/// Name of the sanitizer that an ELF file is built with, if any; `None` also for a file that cannot be read.
pub fn of(file: impl Read + Seek) -> Option<&'static str> {
    let mut elf = ElfStream::<AnyEndian, _>::open_stream(file).ok()?;
    let needed: Vec<u64> = {
        let dynamic = elf.dynamic().ok()??;
        dynamic.iter().filter(|entry| entry.d_tag == DT_NEEDED).map(|entry| entry.d_val()).collect()
    };
    let (symbols, names) = elf.dynamic_symbol_table().ok()??;
    let name_at = |at: u64| usize::try_from(at).ok().and_then(|at| names.get(at).ok());
    let by_library = needed
        .into_iter()
        .filter_map(name_at)
        .find_map(|library| SANITIZERS.iter().find(|sanitizer| library.starts_with(sanitizer.library)));
    let by_function = || {
        symbols
            .iter()
            .filter_map(|symbol| name_at(symbol.st_name.into()))
            .find_map(|function| SANITIZERS.iter().find(|sanitizer| function == sanitizer.function))
    };
    by_library.or_else(by_function).map(|sanitizer| sanitizer.name)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::process::Command;

    use super::*;

    #[test]
    fn programs_with_a_sanitizer_are_told_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("program.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let built = |option: &str| {
            let program = folder.path().join(option);
            let made = Command::new("cc").arg(&source).arg(option).arg("-o").arg(&program).status();
            assert!(made.unwrap().success(), "{option}");
            of(std::fs::File::open(&program).unwrap())
        };
        assert_eq!(built("-fsanitize=address"), Some("AddressSanitizer"));
        assert_eq!(built("-fsanitize=thread"), Some("ThreadSanitizer"));
        assert_eq!(built("-O1"), None);
        assert_eq!(of(Cursor::new(b"\x7fELF\x02\x01\x01".to_vec())), None);
    }
}
