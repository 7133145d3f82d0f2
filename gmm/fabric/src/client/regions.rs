//! Calls about regions.

use reqwest::{Method, StatusCode};

use super::{Client, ClientError};
use crate::api::{CreateRegion, DestroyRegion, DisableRegion, GrowRegion, RegionStatus, ResetRegion};
use crate::model::{Name, Region};

/// What became of a region to be destroyed.
#[derive(Debug, Clone, PartialEq)]
pub enum Destroyed {
    /// It is gone, its memory is zeroed and free.
    Gone,
    /// Memory nodes have yet to confirm; the manager goes on without further calls.
    Draining(Box<RegionStatus>),
}

impl Client {
    /// Creates a region and waits up to `create.wait_ms` for its memory nodes. A region still `creating` when the time
    /// is over is returned as it is; it becomes `active` without further calls.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `no_space`, `over_quota`, `name_in_use`, `not_found` (owner), `bad_request`
    /// (size, ways, granularity), `node_refused` (a memory node could not map it; the region is taken down again).
    pub async fn create_region(&self, create: &CreateRegion) -> Result<Region, ClientError> {
        let asked = format!("create region {} of {} for {}", create.name, create.size, create.owner);
        self.call(Method::POST, "/v1/regions", &asked, Some(create), create.wait_ms).await
    }

    /// Every region, by name.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn regions(&self) -> Result<Vec<Region>, ClientError> {
        self.get("/v1/regions", "list regions").await
    }

    /// Every region, by name, with how far the taking down of those that are draining has come.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn region_statuses(&self) -> Result<Vec<RegionStatus>, ClientError> {
        self.get("/v1/regions", "list regions").await
    }

    /// One region.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` when there is none of this name.
    pub async fn region(&self, name: &Name) -> Result<Region, ClientError> {
        self.region_status(name).await.map(|status| status.region)
    }

    /// One region, with how far its taking down has come if it is draining.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found` when there is none of this name.
    pub async fn region_status(&self, name: &Name) -> Result<RegionStatus, ClientError> {
        self.get(&format!("/v1/regions/{name}"), &format!("show region {name}")).await
    }

    /// Makes a region larger while it is used, and waits up to `grow.wait_ms` for its memory nodes. One whose
    /// `size` is less than asked for when the time is over is still growing.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, `wrong_state` (not active, or growing already), `bad_request`
    /// (not larger), `no_space`, `over_quota`, `node_refused` (the region stays as it was).
    pub async fn grow_region(&self, name: &Name, grow: &GrowRegion) -> Result<Region, ClientError> {
        let asked = format!("grow region {name} to {}", grow.size);
        self.call(Method::POST, &format!("/v1/regions/{name}/grow"), &asked, Some(grow), grow.wait_ms).await
    }

    /// Has the owner of a region let go of it, and waits up to `options.wait_ms` for that; a region that is `releasing`
    /// when the time is over becomes `disabled` without further calls. Its content is kept.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, also where there is another one of that name than the
    /// one created at `options.created_ms`, or with `wrong_state` when it is not in use.
    pub async fn disable_region(&self, name: &Name, options: DisableRegion) -> Result<Region, ClientError> {
        let path = format!("/v1/regions/{name}/disable?wait_ms={}", options.wait_ms);
        self.call(Method::POST, &path, &format!("disable region {name}"), None::<&()>, options.wait_ms).await
    }

    /// Lets the owner of a disabled region have it again.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, also where there is another one of that name than the
    /// one created at `options.created_ms`, or with `wrong_state` when it is not disabled.
    pub async fn enable_region(&self, name: &Name) -> Result<Region, ClientError> {
        let path = format!("/v1/regions/{name}/enable");
        self.call(Method::POST, &path, &format!("enable region {name}"), None::<&()>, 0).await
    }

    /// Maps a `lost` region again, empty, and waits up to `options.wait_ms` for its memory nodes. This accepts that what
    /// the lost legs held is gone.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, also where there is another one of that name than the
    /// one created at `options.created_ms`, or with `wrong_state` when the region is not lost or a memory node
    /// of it is unreachable.
    pub async fn reset_region(&self, name: &Name, options: ResetRegion) -> Result<Region, ClientError> {
        let path = format!("/v1/regions/{name}/reset?wait_ms={}", options.wait_ms);
        self.call(Method::POST, &path, &format!("reset region {name}"), None::<&()>, options.wait_ms).await
    }

    /// Destroys a region and waits up to `options.wait_ms` for its memory to be zeroed.
    ///
    /// # Errors
    /// Any [`ClientError`]; refused with `not_found`, also where there is another one of that name than the
    /// one created at `options.created_ms`, or with `region_in_use` when the owner's agent is there and
    /// `options.force` is not set.
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
