//! A session sealed with node keys, and a neighbour with other keys that sends forged and replayed Hellos, floods, and
//! frames with the addresses of both ends.

use std::collections::BTreeMap;
use std::process::Command as Process;

use cxloe_bench::keys::flood;
use cxloe_lab::program;
use cxloe_link::keys::node_key;
use cxloe_system::node::keyed_port;
use cxloe_wire::frame::keyed::{CALL_AT, HELLO_FRAME_LEN, MAC1_AT};
use cxloe_wire::frame::{PROTOCOL_VERSION_KEYED, PublicKey};
use cxloe_wire::session::NodeKey;

use super::*;

/// A Hello made with the key `own` and the source address `from`.
fn keyed_hello(from: Mac, own: &Arc<NodeKey>, mn: PublicKey, seed: u64) -> Result<Vec<u8>, Failed> {
    Ok(flood::hello((from, MN), mn, own, seed)?)
}

pub fn strangers_without_the_key_get_nowhere() -> Outcome {
    let lab = lab()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("mn.key");
    let shown = Process::new(program("mn-server")?).arg("key").arg("--node-key").arg(&file).output()?;
    let mn: PublicKey = String::from_utf8(shown.stdout)?.trim().parse()?;
    ensure(mn == node_key(&file)?.public(), "`mn-server key` prints the public key")?;
    let own = Arc::new(NodeKey::generate(cxloe_link::keys::SYSTEM));
    let named = format!("{CN}={}", own.public());
    let file = file.to_str().ok_or("a path that is no text")?;
    let socket = folder.path().join("mn.sock");
    let options = ["--node-key", file, "--peer-key", &named, "--socket", socket.to_str().ok_or("no text")?];
    let node =
        MemoryNode::start_with(&lab, "mn0", Backend::Packet, &[(CN, REGION)], folder.path(), &options)?;
    let neighbour = neighbour(&lab, Backend::Packet.into(), "cn0")?;
    let tap = lab.enter("mn", || RawSocket::open("mn0"))??;

    let config = config_to(Backend::Packet, MN);
    let keys = BTreeMap::from([(MN, mn)]);
    let mut port = keyed_port(link_on(&lab, &config)?, own, keys, MN, HPA, REGION)?;
    port.connect(LIMIT)?;
    let work = Work::start(port);
    work.goes_on("nothing yet")?;
    let mut genuine = None;
    for _ in 0..100_000 {
        let Some(seen) = tap.receive(Duration::from_millis(200))? else { break };
        if seen.bytes.len() >= HELLO_FRAME_LEN && seen.bytes[field::COMMAND] == Command::Hello as u8 {
            genuine = Some(seen.bytes);
            break;
        }
    }
    drop(tap);
    let genuine = genuine.ok_or("the Hello was not seen")?;
    let keyed = matches!(
        Message::parse(&genuine),
        Ok((_, Message::Hello(Hello { version: PROTOCOL_VERSION_KEYED, .. })))
    );
    ensure(keyed, "the Hello is one of version 2")?;

    let stranger = Arc::new(NodeKey::from_bytes([3; 32]));
    let his = keyed_hello(NOBODY, &stranger, mn, 5)?;
    let in_our_name = keyed_hello(CN, &stranger, mn, 6)?;
    let others: Vec<Vec<u8>> =
        (0..100).map(|seed| keyed_hello(NOBODY, &stranger, mn, 100 + seed)).collect::<Result<_, _>>()?;
    let before = node.resident_kib()?;
    let attacks: Vec<Attack<'_>> = vec![
        ("Hellos of version 1 in the name of the CN", Box::new(|n| hello(CN, n, n))),
        ("the Hello of the CN again", Box::new(|_| genuine.clone())),
        (
            "the Hello of the CN, changed",
            Box::new(|n| {
                let mut frame = genuine.clone();
                let at = field::COMMAND + n as usize % (frame.len() - field::COMMAND);
                frame[at] ^= 1 << (n % 8);
                frame
            }),
        ),
        (
            "Hellos with a wrong mac1",
            Box::new(|n| {
                let mut frame = genuine.clone();
                frame[CALL_AT..CALL_AT + 8].copy_from_slice(&n.to_be_bytes());
                frame[MAC1_AT] ^= 1;
                frame
            }),
        ),
        ("Hellos of an unknown key", Box::new(|_| his.clone())),
        ("many Hellos of an unknown key", Box::new(|n| others[n as usize % others.len()].clone())),
        ("Hellos of another key in the name of the CN", Box::new(|_| in_our_name.clone())),
        (
            "cut-off Hellos",
            Box::new(|n| genuine[..MIN_FRAME + n as usize % (HELLO_FRAME_LEN - MIN_FRAME)].to_vec()),
        ),
    ];
    attack(&neighbour, attacks, &work)?;
    let after = node.resident_kib()?;
    ensure(after <= before + GROWTH_KIB, format!("mn-server grew from {before} to {after} KiB"))?;

    let told =
        Process::new(program("mn-server")?).args(["sessions", "--json", "--socket"]).arg(&socket).output()?;
    let sessions: serde_json::Value = serde_json::from_slice(&told.stdout)?;
    let all = sessions.as_array().ok_or("no sessions")?;
    ensure(all.len() == 1 && all[0]["cn"] == CN.to_string(), sessions.to_string())?;
    ensure(all[0]["integrity"] == "sealed", sessions.to_string())?;
    let output_text = node.output_text();
    ensure(
        output_text.contains("without a key, although one is registered")
            && output_text.contains("with a key that is not registered for it"),
        output_text,
    )?;
    work.goes_on("all of that")?;
    work.end()?;
    ensure(node.end()?.success(), "an orderly end")
}
