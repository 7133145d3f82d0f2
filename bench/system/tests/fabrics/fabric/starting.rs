//! Ways to start a fabric: suspended until the manager has created the declared regions, without a manager, and (as
//! in all other tests) at once.

use cxloe_client::client::{self, ClientError};
use cxloe_client::message::Attaching;
use cxloe_cn_core::engine::EngineError;
use cxloe_fabric::api::{Bind, CreateRegion, ErrorCode, Owner};
use nix::sys::signal::Signal;

use cxloe_system::star::*;

fn held(error: &ClientError) -> bool {
    matches!(error, ClientError::Engine(EngineError::InReset(_)))
}

pub fn held_nodes_wait_for_what_is_declared() -> Outcome {
    let rig = Star::new(1, 1, &[])?;
    let fabric = rig.path("fabric.toml");
    let declared =
        format!("[[region]]\nname = 'declared'\nsize = '4MiB'\nowner = '{}'\non = ['mn0']\n", cn(0));
    std::fs::write(&fabric, declared)?;
    rig.end("gmm", Signal::SIGTERM)?;
    let fabric = fabric.display().to_string();
    rig.start_gmm(&["--init", "manager-first", "--fabric", &fabric])?;
    rig.start_agent(0, &[])?;
    eventually("the node is held", || client::node(&rig.socket(0)).ok()?.held.then_some(()))?;
    rig.says("cn0", "has suspended this node")?;
    let shown = rig.cli(0, &["list"])?;
    let warned = String::from_utf8_lossy(&shown.stderr).into_owned();
    ensure(shown.status.success() && warned.contains("suspended"), warned)?;
    let mut port = rig.connect(0)?;
    let error = port.read(1 << 40).expect_err("it is held");
    ensure(held(&error) && error.to_string().contains("gmm release"), error.to_string())?;
    let told = rig.cli(0, &["read", "0x10000000000"])?;
    ensure(told.status.code() == Some(5), format!("{told:?}"))?;

    // After the memory node has registered, the region is created and the compute node is released from reset.
    rig.start_mn(0, &["--pool-size", "16MiB"])?;
    let hpa = rig.attached(0, "declared")?.hpa;
    ensure(!client::node(&rig.socket(0))?.held, "it is released")?;
    fill(&mut port, hpa, 4 * MIB, 1)?;

    // A compute node is suspended by a command: modified lines and the region's address are kept.
    let node = Owner::CnId(cn(0));
    rig.ask(rig.manager.hold(&node))?;
    rig.listed(0, "declared", |region| region.attachment == Attaching::InReset)?;
    ensure(port.write(hpa, &[0; 64]).is_err_and(|error| held(&error)), "it is held")?;
    rig.ask(rig.manager.release(&node))?;
    ensure(rig.attached(0, "declared")?.hpa == hpa, "it keeps its address")?;
    verify(&mut port, hpa, 4 * MIB, 1)
}

pub fn static_fabrics_need_no_manager() -> Outcome {
    let rig = Star::new(2, 1, &[])?;
    let fabric = rig.path("fabric.toml");
    let region = |name: &str, on: usize| {
        format!("[[region]]\nname = '{name}'\nsize = '4MiB'\nowner = '{}'\non = ['mn{on}']\n", cn(0))
    };
    std::fs::write(&fabric, region("a", 0) + &region("b", 1))?;
    rig.end("gmm", Signal::SIGTERM)?;
    let fabric = fabric.display().to_string();
    rig.start_gmm(&["--init", "static", "--fabric", &fabric])?;
    let pool = |index: usize| format!("file:{}", rig.path(&format!("pool{index}")).display());
    let pools = [pool(0), pool(1)];
    let options = |index: usize| ["--pool", pools[index].as_str(), "--pool-size", "16MiB", "--device", "sld"];
    for index in 0..2 {
        rig.start_mn(index, &options(index))?;
    }
    rig.start_agent(0, &[])?;
    let (a, b) = (rig.attached(0, "a")?.hpa, rig.attached(0, "b")?.hpa);
    let refused = |result: Result<(), cxloe_fabric::ClientError>| {
        let code = result.as_ref().err().and_then(cxloe_fabric::ClientError::code);
        ensure(code == Some(ErrorCode::StaticFabric), format!("{result:?}"))
    };
    let bind =
        Bind { compute_node: cn(0).into(), memory_node: name("mn0"), ld: None, vppb: None, wait_ms: WAIT_MS };
    refused(rig.ask(rig.manager.bind(&bind)).map(drop))?;
    refused(rig.ask(rig.manager.create_region(&CreateRegion::new(name("c"), 2 * MIB, cn(0)))).map(drop))?;
    let mut port = rig.connect(0)?;
    fill(&mut port, a, 4 * MIB, 1)?;
    fill(&mut port, b, 4 * MIB, 2)?;
    port.flush()?;

    // From here on the fabric has no manager.
    rig.end("gmm", Signal::SIGTERM)?;
    rig.end("mn0", Signal::SIGTERM)?;
    rig.end("cn0", Signal::SIGTERM)?;
    rig.end("mn1", Signal::SIGKILL)?;
    for index in 0..2 {
        rig.start_mn_alone(index, &options(index))?;
        rig.says(&format!("mn{index}"), "serving")?;
    }
    rig.start_agent(0, &[])?;
    ensure(rig.attached(0, "a")?.hpa == a && rig.attached(0, "b")?.hpa == b, "they keep their addresses")?;
    let mut port = rig.connect(0)?;
    verify(&mut port, a, 4 * MIB, 1)?;
    verify(&mut port, b, 4 * MIB, 2)?;
    fill(&mut port, a, 4 * MIB, 3)?;
    port.flush()?;
    verify(&mut port, a, 4 * MIB, 3)
}
