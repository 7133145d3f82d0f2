//! Routes of logical devices and their bindings. A request waits for the binding or unbinding for as long as the
//! request states; afterwards, the operation continues without it.

use axum::Json;
use axum::extract::State;

use super::answer::{Removed, Settled};
use super::extract::Body;
use super::guard::{RequestCaller, Routes, routes};
use super::regions::failed;
use super::wait::poll;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::topics::Topic;
use cxloe_fabric::api::{Bind, ErrorCode, LogicalDeviceStatus, Unbind};
use cxloe_fabric::model::{LogicalDevice, RegionState};
use cxloe_gmm_core::manager::{Command, Manager};

pub fn routes() -> Routes {
    routes! {
        get "/v1/logical-devices" Look list: "listLogicalDevices", "Logical devices that have capacity or are bound";
        post "/v1/bindings" Administer bind: "bind", "Bind a logical device to a compute node";
        post "/v1/unbind" Administer unbind: "unbind", "Take a logical device from its compute node";
    }
}

async fn list(State(core): State<Core>) -> Result<Json<Vec<LogicalDeviceStatus>>, ApiError> {
    let view = |manager: &Manager| {
        manager.state().logical_devices.values().map(|ld| manager.device_status(ld)).collect()
    };
    Ok(Json(core.view(view).await?))
}

async fn bind(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(bind): Body<Bind>,
) -> Result<Settled<LogicalDeviceStatus, 201>, ApiError> {
    let (wait_ms, owner, node) = (bind.wait_ms, bind.compute_node.clone(), bind.memory_node.clone());
    let view = move |manager: &Manager, _: &_| {
        let cn = manager.known_compute_node(&owner).ok()?.cn_id;
        let ld = manager.devices_of(cn).find(|ld| ld.memory_node == node)?.clone();
        let region = ld.binding.as_ref()?.region.clone()?;
        Some((ld, region, manager.state().meta.last_event))
    };
    let (bound, region, asked) =
        core.apply(&caller, Command::Bind(bind, None), view).await?.ok_or_else(lost)?;
    let topic = Topic::Region(region.clone());
    let what = format!("LD {} of memory node {} was not bound", bound.id, bound.memory_node);
    let seen = move |manager: &Manager| {
        let Some(ld) = still_bound(manager, &bound) else {
            return Err(manager.reason_after(&region, asked).map(str::to_owned));
        };
        let creating = manager.region(&region).is_ok_and(|region| region.state == RegionState::Creating);
        let device = manager.device_status(ld);
        Ok(if creating { Settled::Pending(device) } else { Settled::Done(device) })
    };
    let settled = {
        let seen = seen.clone();
        move |manager: &Manager| (!matches!(seen(manager), Ok(Settled::Pending(_)))).then_some(())
    };
    poll(&core, topic, wait_ms, settled).await?;
    core.view(seen).await?.map_err(|reason| failed(what, ErrorCode::NodeRefused, reason))
}

async fn unbind(
    State(core): State<Core>,
    RequestCaller(caller): RequestCaller,
    Body(unbind): Body<Unbind>,
) -> Result<Removed<LogicalDeviceStatus>, ApiError> {
    let (wait_ms, place) = (unbind.wait_ms, (unbind.memory_node.clone(), unbind.ld));
    let topic = Topic::LogicalDevice(place.0.clone(), place.1);
    let view = {
        let place = place.clone();
        move |manager: &Manager, _: &_| manager.state().logical_devices.get(&place).cloned()
    };
    let device = core.apply(&caller, Command::Unbind(unbind, None), view).await?;
    let Some(device) = device.filter(is_unbinding) else { return Ok(Removed::Done) };
    let current = move |manager: &Manager| {
        let ld = manager.state().logical_devices.get(&place).filter(|ld| is_unbinding(ld))?;
        // If the logical device is now bound to another compute node, the first compute node has released it.
        let same =
            ld.binding.as_ref().map(|b| b.compute_node) == device.binding.as_ref().map(|b| b.compute_node);
        same.then(|| manager.device_status(ld))
    };
    let seen = current.clone();
    if poll(&core, topic, wait_ms, move |manager| seen(manager).is_none().then_some(())).await?.is_some() {
        return Ok(Removed::Done);
    }
    Ok(core.view(current).await?.map_or(Removed::Done, Removed::Pending))
}

fn is_unbinding(ld: &LogicalDevice) -> bool {
    ld.binding.as_ref().is_some_and(|binding| binding.unbinding.is_some())
}

/// The logical device in its present state; `None` if the binding in `bound` has ended or is ending.
fn still_bound<'a>(manager: &'a Manager, bound: &LogicalDevice) -> Option<&'a LogicalDevice> {
    let ld = manager.state().logical_devices.get(&(bound.memory_node.clone(), bound.id))?;
    let same = |binding: &cxloe_fabric::model::Binding| {
        let before = bound.binding.as_ref();
        before.is_some_and(|before| {
            before.compute_node == binding.compute_node && before.region == binding.region
        })
    };
    let binding = ld.binding.as_ref().filter(|binding| binding.unbinding.is_none());
    binding.filter(|binding| same(binding)).map(|_| ld)
}

fn lost() -> ApiError {
    let error = "the binding was taken back while it was being made";
    ApiError::new(ErrorCode::WrongState, error, "`gmm list -L` shows how things stand")
}
