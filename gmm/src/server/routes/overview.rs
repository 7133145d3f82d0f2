//! Routes of the web view: a summary of the fabric, and a search of its regions.

use axum::extract::State;
use axum::{Extension, Json};

use super::Leader;
use super::extract::Query;
use super::guard::{Routes, routes};
use crate::server::core::Core;
use crate::server::error::ApiError;
use cxloe_fabric::api::{Overview, RegionsPage, RegionsQuery};

pub fn routes() -> Routes {
    routes! {
        get "/v1/overview" Look show: "showOverview", "Overview of the fabric: nodes, shares of memory, traffic";
        get "/v1/overview/regions" Look regions: "searchRegions",
            "Regions that fit a search: how many, and the first of them";
    }
}

async fn show(
    State(core): State<Core>,
    Extension(Leader(leader)): Extension<Leader>,
) -> Result<Json<Overview>, ApiError> {
    Ok(Json(core.execute(move |manager, now_ms, _| manager.overview(&leader, now_ms)).await?))
}

async fn regions(
    State(core): State<Core>,
    Query(query): Query<RegionsQuery>,
) -> Result<Json<RegionsPage>, ApiError> {
    Ok(Json(core.view(move |manager| manager.regions_page(&query)).await?))
}
