//! Logical devices of one memory node, bound to and unbound from compute nodes that are independent of each other.

use cxloe_client::client::{self, ClientError};
use cxloe_cn_core::engine::EngineError;
use cxloe_fabric::api::{Bind, ErrorCode, SetLdAllocations, Unbind};
use cxloe_fabric::client::Unbound;
use cxloe_fabric::model::{RegionState, UnbindOption};
use cxloe_wire::session::OpError;
use nix::sys::signal::Signal;

use super::load::{Load, Trouble};
use cxloe_system::star::*;

fn unbind(rig: &Star, ld: u16, option: UnbindOption, wait_ms: u64) -> Outcome<Unbound> {
    Ok(rig.ask(rig.manager.unbind(&Unbind { memory_node: name("mn0"), ld, option, wait_ms }))?)
}

/// Waits until a compute node has no memory left on the memory node.
fn unbound(rig: &Star, owner: usize) -> Outcome {
    eventually(&format!("cn{owner} is unbound"), || rig.device(0, owner).ok()?.is_none().then_some(()))
}

/// True if an error is one that users of a removed region get.
fn is_gone(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Engine(
            EngineError::Draining(_)
                | EngineError::Unmapped(_)
                | EngineError::Failed { error: OpError::Fault(_), .. }
        )
    )
}

pub fn unbinding_one_leaves_the_other_alone() -> Outcome {
    let rig = Star::whole(1, 2, "64MiB")?;
    let bytes = 4 * MIB;
    let stays = rig.create("stays", 1, bytes, &[0], 4096)?;
    let session = || -> Outcome<_> {
        let sessions = client::sessions(&rig.socket(1))?;
        let session = sessions.into_iter().next().ok_or("a session is open")?;
        ensure(session.status.state == "open", format!("{:?}", session.status))?;
        Ok(session.status.counters)
    };
    let opened = session()?.sessions;
    let load = Load::start(rig.socket(1), stays, bytes);
    load.goes_on()?;
    for option in [UnbindOption::Managed, UnbindOption::WaitLinkDown, UnbindOption::Surprise] {
        let hpa = rig.create("goes", 0, bytes, &[0], 4096)?;
        let ld = rig.device(0, 0)?.ok_or("it is bound with its first region")?.device.id;
        let mut port = rig.connect(0)?;
        fill(&mut port, hpa, bytes, 1)?;
        match option {
            UnbindOption::Managed => {
                port.flush()?;
                let written_back = || client::counters(&rig.socket(0)).map(|c| c.engine.write_backs);
                let before = written_back()?;
                for i in 0..100 {
                    port.write(hpa + i * 64, &[9; 64])?;
                }
                ensure(
                    unbind(&rig, ld, option, WAIT_MS)? == Unbound::Free,
                    "it is free when that is answered",
                )?;
                ensure(written_back()? >= before + 100, "what was modified is written back first")?;
                ensure(port.read(hpa).is_err_and(|error| is_gone(&error)), "it is gone")?;
            }
            UnbindOption::WaitLinkDown => {
                let waiting = unbind(&rig, ld, option, 0)?;
                ensure(matches!(waiting, Unbound::Unbinding(_)), format!("{waiting:?}"))?;
                rig.region_is("goes", RegionState::Releasing)?;
                rig.listed(0, "goes", |region| region.state == "releasing")?;
                verify(&mut port, hpa, bytes, 1)?;
                rig.end("cn0", Signal::SIGTERM)?;
            }
            UnbindOption::Surprise => {
                // Modified lines that were not written back are lost with the memory, and logged.
                cxloe_lab::expect_error("a modified line could not be written back");
                let victim = Load::start(rig.socket(0), hpa, bytes);
                victim.goes_on()?;
                ensure(
                    unbind(&rig, ld, option, WAIT_MS)? == Unbound::Free,
                    "it is free when that is answered",
                )?;
                match victim.trouble()? {
                    Trouble::Failed(error) if is_gone(&error) => {}
                    other => return Err(format!("the load stopped of this: {other}").into()),
                }
            }
        }
        unbound(&rig, 0)?;
        load.goes_on()?;
        eventually("its memory is zeroed", || {
            let regions = rig.ask(rig.manager.regions()).ok()?;
            regions.iter().all(|region| region.name != name("goes")).then_some(())
        })?;
        if option == UnbindOption::WaitLinkDown {
            rig.start_agent(0, &[])?;
        }
    }
    load.goes_on()?;
    let rounds = load.end().map_err(|trouble| format!("the other compute node noticed: {trouble}"))?;
    let after = session()?;
    ensure(after.sessions == opened, format!("its session is another: {after:?}"))?;
    println!("{rounds} rounds, {} requests, {} of them repeated", after.requests, after.retransmitted);
    Ok(())
}

pub fn devices_come_and_go_while_the_agent_runs() -> Outcome {
    const LD: u64 = 256 * MIB;
    let rig = Star::whole(1, 1, "768MiB")?;
    let empty = rig.cli(0, &["list", "-L"])?;
    ensure(empty.stdout == b"[\n]\n", format!("{empty:?}"))?;
    let mut port = rig.connect(0)?;
    let set = SetLdAllocations { first: 3, reserved: vec![size(LD), size(LD)] };
    rig.ask(rig.manager.set_ld_allocations(&name("mn0"), &set))?;
    let bind = |ld| Bind {
        compute_node: cn(0).into(),
        memory_node: name("mn0"),
        ld: Some(ld),
        vppb: Some(5),
        wait_ms: WAIT_MS,
    };
    rig.ask(rig.manager.bind(&bind(3)))?;
    let twice = rig.ask(rig.manager.bind(&bind(3)));
    ensure(
        twice.as_ref().err().and_then(cxloe_fabric::ClientError::code) == Some(ErrorCode::WrongState),
        format!("{twice:?}"),
    )?;
    // The region is added while the agent runs, and can be used through a port opened before.
    let region = rig.attached(0, "mn0-ld3")?;
    ensure(region.size == LD, format!("{region:?}"))?;
    rig.says("cn0", "hot-add")?;
    for at in [0, LD / 2, LD - MIB] {
        fill(&mut port, region.hpa + at, MIB, at)?;
    }
    for at in [0, LD / 2, LD - MIB] {
        verify(&mut port, region.hpa + at, MIB, at)?;
    }
    let devices = client::node(&rig.socket(0))?.devices;
    let [device] = &devices[..] else { return Err(format!("{devices:?}").into()) };
    ensure((device.ld, device.vppb, device.reserved) == (3, Some(5), LD), format!("{device:?}"))?;
    ensure(device.region.as_deref() == Some("mn0-ld3"), format!("{device:?}"))?;
    let shown: serde_json::Value = serde_json::from_slice(&rig.cli(0, &["list", "-RL"])?.stdout)?;
    ensure(shown[0]["regions"][0]["region"] == "mn0-ld3", shown.to_string())?;
    ensure(shown[1]["logical_devices"][0]["ld"] == 3, shown.to_string())?;

    let gone = unbind(&rig, 3, UnbindOption::Managed, WAIT_MS)?;
    if gone != Unbound::Free {
        unbound(&rig, 0)?;
    }
    rig.says("cn0", "hot-remove: a logical device is no longer bound")?;
    eventually("nothing is attached", || client::regions(&rig.socket(0)).ok()?.is_empty().then_some(()))?;
    let error = port.read(region.hpa).expect_err("it is gone");
    ensure(is_gone(&error), error.to_string())
}
