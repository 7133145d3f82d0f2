//! Calls about regions: creation, growth, protection, moves, shares, clones and destruction.

use reqwest::{Method, StatusCode};

use super::{Client, ClientError};
use crate::api::{
    CloneRegion, CreateRegion, DestroyRegion, DisableRegion, GrowRegion, LabelRegion, LegsFilled, LegsStale,
    MoveRegion, Overview, ProtectRegion, RegionStatus, RelocateRegion, ResetRegion, SealRegion, ShareRegion,
};
use crate::model::{Name, Region};

/// Progress of a destruction when the call returns.
#[derive(Debug, Clone, PartialEq)]
pub enum Destroyed {
    /// The region is removed; its memory is zeroed and free.
    Gone,
    /// Memory nodes have not yet confirmed that all of the region's memory is zeroed; the manager continues without
    /// further calls.
    Draining(Box<RegionStatus>),
}

impl Client {
    /// Creates a region and waits up to `create.wait_ms` until its memory nodes have mapped it. A region
    /// still `creating` when the time ends is returned in that state; it becomes `active` without further
    /// calls.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `no_space`, `over_quota`, `name_in_use`, `not_found` (owner), `bad_request`
    /// (size, ways, granularity), `node_refused` (a memory node could not map the region, which is destroyed
    /// again).
    pub async fn create_region(&self, create: &CreateRegion) -> Result<Region, ClientError> {
        self.call(Method::POST, "/v1/regions", &create.to_string(), Some(create), create.wait_ms).await
    }

    /// Lists every region in any state, ordered by name.
    pub async fn regions(&self) -> Result<Vec<Region>, ClientError> {
        self.get("/v1/regions", "list regions").await
    }

    /// Lists every region, ordered by name, with the progress of those being destroyed.
    pub async fn region_statuses(&self) -> Result<Vec<RegionStatus>, ClientError> {
        self.get("/v1/regions", "list regions").await
    }

    /// Returns a summary of the fabric, with the number of regions per state.
    pub async fn overview(&self) -> Result<Overview, ClientError> {
        self.get("/v1/overview", "show the overview").await
    }

    /// Returns the record of a region.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` if no region has this name.
    pub async fn region(&self, name: &Name) -> Result<Region, ClientError> {
        self.region_status(name).await.map(|status| status.region)
    }

    /// Returns the record of a region, with the progress of its destruction.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` if no region has this name.
    pub async fn region_status(&self, name: &Name) -> Result<RegionStatus, ClientError> {
        self.get(&format!("/v1/regions/{name}"), &format!("show region {name}")).await
    }

    /// Waits up to `wait_ms` until the agent of the region's owner has received the present state of its regions, and
    /// returns the region. Does not wait if that agent is not running.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` if no region has this name.
    pub async fn region_at_owner(&self, name: &Name, wait_ms: u64) -> Result<RegionStatus, ClientError> {
        let path = format!("/v1/regions/{name}?owner_wait_ms={wait_ms}");
        self.call(Method::GET, &path, &format!("show region {name}"), None::<&()>, wait_ms).await
    }

    /// Changes the labels of a region, which may be in any state. Returns the region.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `bad_request` (too many labels).
    pub async fn label_region(&self, name: &Name, order: &LabelRegion) -> Result<Region, ClientError> {
        let (path, asked) = (format!("/v1/regions/{name}/labels"), format!("label region {name}"));
        self.call(Method::POST, &path, &asked, Some(order), 0).await
    }

    /// Enlarges a region during its use, and waits up to `grow.wait_ms` until its memory nodes have mapped
    /// the addition. A region whose `size` is less than requested when the wait ends is still growing.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `wrong_state` (not active, or growing already), `bad_request`
    /// (not larger), `no_space`, `over_quota`, `node_refused` (the region stays as it was).
    pub async fn grow_region(&self, name: &Name, grow: &GrowRegion) -> Result<Region, ClientError> {
        let asked = format!("grow region {name} to {}", grow.size);
        self.call(Method::POST, &format!("/v1/regions/{name}/grow"), &asked, Some(grow), grow.wait_ms).await
    }

    /// Asks the owner of a region to release the region, and waits up to `options.wait_ms`. A region that is
    /// `releasing` when the wait ends becomes `disabled` without further calls. Its content is kept.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `wrong_state` if the region is not in use.
    pub async fn disable_region(&self, name: &Name, options: DisableRegion) -> Result<Region, ClientError> {
        let path = format!("/v1/regions/{name}/disable?wait_ms={}", options.wait_ms);
        self.call(Method::POST, &path, &format!("disable region {name}"), None::<&()>, options.wait_ms).await
    }

    /// Gives a disabled region back to its owner.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `wrong_state` if the region is not disabled.
    pub async fn enable_region(&self, name: &Name) -> Result<Region, ClientError> {
        let path = format!("/v1/regions/{name}/enable");
        self.call(Method::POST, &path, &format!("enable region {name}"), None::<&()>, 0).await
    }

    /// Maps a `lost` region again, and waits up to `options.wait_ms` for its memory nodes. The content of the
    /// lost legs is given up: they contain zeros.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, or with `wrong_state` if the region is not lost or a
    /// memory node of it is unreachable.
    pub async fn reset_region(&self, name: &Name, options: ResetRegion) -> Result<Region, ClientError> {
        let path = format!("/v1/regions/{name}/reset?wait_ms={}", options.wait_ms);
        self.call(Method::POST, &path, &format!("reset region {name}"), None::<&()>, options.wait_ms).await
    }

    /// Changes the protection of a region during its use, and waits up to `protect.wait_ms` until every copy is in sync.
    /// A region that is `exposed` when the wait ends becomes protected without further calls, as long as its owner's
    /// agent runs.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `wrong_state`, `no_space`, `over_quota`, `node_refused`.
    pub async fn protect_region(&self, name: &Name, protect: &ProtectRegion) -> Result<Region, ClientError> {
        let asked = format!("set the protection of region {name} to {}", protect.protect);
        let path = format!("/v1/regions/{name}/protect");
        self.call(Method::POST, &path, &asked, Some(protect), protect.wait_ms).await
    }

    /// Moves a region to another compute node, or stops the move, and waits up to `order.wait_ms` until the
    /// region is usable there. The present owner's agent writes back and releases the region first; nothing
    /// is copied.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `wrong_state`, `over_quota`.
    pub async fn move_region(&self, name: &Name, order: &MoveRegion) -> Result<Region, ClientError> {
        let asked = match &order.to {
            Some(to) => format!("move region {name} to {to}"),
            None => format!("stop moving region {name}"),
        };
        self.call(Method::POST, &format!("/v1/regions/{name}/move"), &asked, Some(order), order.wait_ms).await
    }

    /// Seals a region, and waits up to `order.wait_ms` until every memory node refuses writes. The owner's
    /// agent writes back and releases the region first, and then attaches it again, to be read only.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `wrong_state`.
    pub async fn seal_region(&self, name: &Name, order: &SealRegion) -> Result<Region, ClientError> {
        let path = format!("/v1/regions/{name}/seal");
        self.call(Method::POST, &path, &format!("seal region {name}"), Some(order), order.wait_ms).await
    }

    /// Lets a further compute node read a sealed region, or ends the share, and waits up to `order.wait_ms` until the
    /// memory nodes have carried out the change.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `wrong_state`, `limit_reached`.
    pub async fn share_region(&self, name: &Name, order: &ShareRegion) -> Result<Region, ClientError> {
        let asked = match order.end {
            false => format!("share region {name} with {}", order.with),
            true => format!("share region {name} no longer with {}", order.with),
        };
        let path = format!("/v1/regions/{name}/share");
        self.call(Method::POST, &path, &asked, Some(order), order.wait_ms).await
    }

    /// Makes a region that begins with the content of region `name`, and waits up to `order.wait_ms` until it can be
    /// used. The owner of a region in use writes back and releases it first, and then attaches it again.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `wrong_state`, `name_in_use`, `no_space`, `over_quota`.
    pub async fn clone_region(&self, name: &Name, order: &CloneRegion) -> Result<Region, ClientError> {
        let asked = format!("clone region {name} as {}", order.name);
        let path = format!("/v1/regions/{name}/clone");
        self.call(Method::POST, &path, &asked, Some(order), order.wait_ms).await
    }

    /// Moves those parts of a region that are on one memory node to another while the region is used, or
    /// stops the move, and waits up to `relocate.wait_ms`. The owner's agent copies the parts, or memory nodes do if
    /// nobody uses the region; they continue after the wait.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `wrong_state`, `no_space`.
    pub async fn relocate_region(
        &self,
        name: &Name,
        relocate: &RelocateRegion,
    ) -> Result<Region, ClientError> {
        let asked = match &relocate.to {
            Some(to) => format!("move region {name} from {} to {to}", relocate.from),
            None => format!("stop moving region {name} from {}", relocate.from),
        };
        let path = format!("/v1/regions/{name}/relocate");
        self.call(Method::POST, &path, &asked, Some(relocate), relocate.wait_ms).await
    }

    /// Declares stale the legs of a mirrored region on one memory node (its parts there), on behalf of its owner's
    /// agent. Returns the region after the commit.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `not_registered` (not the owner's present agent), `only_copy`
    /// (the other copy is not in sync) or `stale_epoch` (the legs have changed meanwhile: request the region again).
    pub async fn legs_stale(&self, name: &Name, stale: &LegsStale) -> Result<Region, ClientError> {
        let asked = format!("declare stale the legs of region {name} on {}", stale.mac);
        self.call(Method::POST, &format!("/v1/regions/{name}/legs/stale"), &asked, Some(stale), 0).await
    }

    /// Reports, on behalf of the owner's agent, that a stale leg (a region's part on one memory node) has the same
    /// content as its other copy. Returns the region after the commit.
    ///
    /// # Errors
    /// As [`legs_stale`](Self::legs_stale), without `only_copy`.
    pub async fn legs_filled(&self, name: &Name, filled: &LegsFilled) -> Result<Region, ClientError> {
        let asked = format!("report as filled the leg of region {name} on {}", filled.mac);
        self.call(Method::POST, &format!("/v1/regions/{name}/legs/filled"), &asked, Some(filled), 0).await
    }

    /// Destroys a region and waits up to `options.wait_ms` for its memory to be zeroed.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, also if the region of that name was not created at
    /// `options.created_ms`, or with `region_in_use` if the owner's agent is running and `options.force` is not set.
    pub async fn destroy_region(
        &self,
        name: &Name,
        options: DestroyRegion,
    ) -> Result<Destroyed, ClientError> {
        let asked = format!("destroy region {name}");
        let path = format!("/v1/regions/{name}?{}", options.query());
        let (status, body) =
            self.exchange(Method::DELETE, &path, &asked, None::<&()>, options.wait_ms).await?;
        if status == StatusCode::NO_CONTENT {
            return Ok(Destroyed::Gone);
        }
        self.parse(&asked, &body).map(|region| Destroyed::Draining(Box::new(region)))
    }
}
