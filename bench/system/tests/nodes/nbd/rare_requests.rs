//! Requests that ordinary copies do not send, from nbdsh, nbdinfo and QEMU: reads of no bytes and of all, the status of
//! ranges, reads ahead, and zeros that have to be fast.

use super::{DISK, Exported, text, tool};
use cxloe_system::pair::*;

/// Reads of no bytes, and of more bytes than one frame or one part can carry, answered in one piece or in several.
pub fn nbdsh_asks_for_nothing_and_for_all() -> Outcome {
    let disk = Exported::start(&[])?;
    let image = disk.image()?;
    let script = format!(
        "
h.set_strict_mode(0)
h.connect_uri('{}')
data = open('{}', 'rb').read()
h.pwrite(data, 0)
assert h.pread(0, 0) == b'' and h.pread(0, 4096) == b''
assert h.pread(512, 512) == data[512:1024]
assert h.pread(len(data), 0) == data
assert h.pread(1 << 20, 77, nbd.CMD_FLAG_DF) == data[77:77 + (1 << 20)]
h.pwrite(b'', 0)
h.zero(0, 0)
h.zero(300000, 333)
assert h.pread(301000, 0) == data[:333] + bytes(300000) + data[300333:301000]
try:
    h.pread(512, len(data))
    assert False
except nbd.Error as error:
    assert error.errnum in (22, 28), error
assert h.pread(64, 0) == data[:64]
h.shutdown()
",
        disk.uri("disk"),
        text(&image)
    );
    for structured in ["True", "False"] {
        let asked = format!("h.set_request_structured_replies({structured})\n{script}");
        succeeded(tool("nbdsh", &["-c", &asked])?)?;
    }
    Ok(())
}

/// All of a region is data, also pages never written and pages discarded, because nobody records which are zeros.
pub fn maps_show_data_everywhere() -> Outcome {
    let disk = Exported::start(&[])?;
    let uri = disk.uri("disk");
    succeeded(tool("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 64k", "-c", "discard 2M 64k", &uri])?)?;
    let map = succeeded(tool("nbdinfo", &["--map", "--json", &uri])?)?;
    let expected = serde_json::json!([{ "offset": 0, "length": DISK, "type": 0, "description": "data" }]);
    ensure(serde_json::from_str::<serde_json::Value>(&map)? == expected, map)?;
    let map = succeeded(tool("qemu-img", &["map", "--output=json", "-f", "raw", &uri])?)?;
    let extents: Vec<serde_json::Value> = serde_json::from_str(&map)?;
    let data = extents.iter().filter(|extent| extent["data"] == true && extent["zero"] == false);
    let bytes: Option<u64> = data.map(|extent| extent["length"].as_u64()).sum();
    ensure(bytes == Some(DISK), map)
}

pub fn nbdsh_reads_ahead_and_asks_for_fast_zeros() -> Outcome {
    let disk = Exported::start(&[])?;
    let script = format!(
        "
import errno
h.add_meta_context('base:allocation')
h.connect_uri('{}')
assert h.can_meta_context('base:allocation')
told = []
def tell(context, offset, extents, error):
    told.append((context, offset, extents))
h.block_status(8 << 20, 4096, tell)
h.block_status(512, 0, tell, nbd.CMD_FLAG_REQ_ONE)
assert told == [('base:allocation', 4096, [8 << 20, 0]), ('base:allocation', 0, [512, 0])], told
h.pwrite(b'x' * 65536, 0)
h.cache(h.get_size(), 0)
h.zero(4096, 0, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
try:
    h.zero(4096, 4096, nbd.CMD_FLAG_FAST_ZERO)
    assert False
except nbd.Error as error:
    assert error.errnum == errno.ENOTSUP, error
assert h.pread(8192, 0) == bytes(4096) + b'x' * 4096
h.shutdown()
",
        disk.uri("disk")
    );
    succeeded(tool("nbdsh", &["-c", &script])?).map(drop)
}
