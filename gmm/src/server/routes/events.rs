//! Routes of the event log: pages, and a stream of server-sent events. Both continue after a given event number, and
//! both can be filtered.

use std::collections::VecDeque;
use std::convert::Infallible;

use aide::generate::GenContext;
use aide::openapi::{MediaType, Operation, Response as Described};
use aide::operation::OperationOutput;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream;

use super::extract::Query;
use super::guard::{Routes, get, routes};
use super::wait::poll;
use crate::server::core::Core;
use crate::server::error::ApiError;
use crate::server::identify::RequestCredentials;
use crate::server::topics::Topic;
use cxloe_fabric::api::{ErrorCode, Events, EventsGap, EventsQuery, Owner};
use cxloe_fabric::model::{CnId, Event, EventKind, Name};
use cxloe_gmm_core::manager::{EVENTS_PER_ANSWER_MAX, Manager};
use cxloe_gmm_core::rights::Right;

/// Header with the number of the last event that a reader of the stream has received.
const LAST_EVENT_ID: &str = "last-event-id";

pub fn routes() -> Routes {
    routes! {
        get "/v1/events" Look list: "listEvents", "A part of the event log";
    }
        .route(
            "/v1/events/stream",
            get(Right::Look, follow, |op| {
                op.id("followEvents").summary("Events as they happen").description(
                    "Each event has its number as `id`; a reader that comes back gives the last one in the header \
                     `Last-Event-ID` and goes on there. In place of events that are no longer kept comes one of the type \
                     `gap`.",
                )
            }),
        )
}

/// Conditions that an event has to meet.
#[derive(Debug, Clone)]
struct Filter {
    since_ms: u64,
    kinds: Vec<&'static str>,
    node: Option<Node>,
    who: Option<String>,
    region: Option<Name>,
}

/// A node in a filter: the same name may be that of a memory node and of a compute node.
#[derive(Debug, Clone)]
struct Node {
    memory_node: Option<Name>,
    compute_node: Option<CnId>,
}

impl Filter {
    async fn new(core: &Core, query: &EventsQuery) -> Result<Self, ApiError> {
        let EventsQuery { since_ms, kind, node, who, region, .. } = query.clone();
        let kinds = kind.iter().flat_map(|kinds| kinds.split(',')).map(kind_of).collect::<Result<_, _>>()?;
        let node = match node {
            None => None,
            Some(node) => {
                let memory_node = match &node {
                    Owner::Name(name) => Some(name.clone()),
                    Owner::CnId(_) => None,
                };
                let known = core.view(move |manager| manager.known_compute_node(&node)).await?;
                Some(Node { memory_node, compute_node: known.ok().map(|node| node.cn_id) })
            }
        };
        Ok(Self { since_ms: since_ms.unwrap_or(0), kinds, node, who, region })
    }

    fn wants(&self, event: &Event) -> bool {
        let kind = &event.kind;
        event.time_ms >= self.since_ms
            && (self.kinds.is_empty() || self.kinds.contains(&kind.label()))
            && self.who.as_ref().is_none_or(|who| event.who.as_ref() == Some(who))
            && self.region.as_ref().is_none_or(|region| kind.region() == Some(region))
            && self.node.as_ref().is_none_or(|node| node.is_concerned(kind))
    }
}

impl Node {
    fn is_concerned(&self, kind: &EventKind) -> bool {
        let is = |memory_node: &Name| self.memory_node.as_ref() == Some(memory_node);
        let is_cn = |compute_node| self.compute_node == Some(compute_node);
        kind.memory_node().is_some_and(is) || kind.compute_node().is_some_and(is_cn)
    }
}

fn kind_of(text: &str) -> Result<&'static str, ApiError> {
    EventKind::LABELS.into_iter().find(|label| *label == text).ok_or_else(|| {
        let error = format!("{text:?} is no kind of event");
        ApiError::new(ErrorCode::BadRequest, error, format!("kinds are {}", EventKind::LABELS.join(", ")))
    })
}

async fn list(State(core): State<Core>, Query(query): Query<EventsQuery>) -> Result<Json<Events>, ApiError> {
    let filter = Filter::new(&core, &query).await?;
    let EventsQuery { after, limit, wait_ms, .. } = query;
    let limit = limit.unwrap_or(EVENTS_PER_ANSWER_MAX);
    let page = move |manager: &Manager| manager.events_that(after, limit, |event| filter.wants(event));
    let seen = page.clone();
    let found = move |manager: &Manager| Some(seen(manager)).filter(|page| !page.events.is_empty());
    match poll(&core, Topic::Events, wait_ms, found).await? {
        Some(events) => Ok(Json(events)),
        None => Ok(Json(core.view(page).await?)),
    }
}

/// Maximum time that a stream continues without a check of its reader's rights, in milliseconds.
const STANDING_MS: u64 = 10_000;

/// A reader of the stream, with its position and its filter.
struct Reader {
    core: Core,
    /// Credentials of the reader, which are checked again while the stream lasts.
    standing: RequestCredentials,
    filter: Filter,
    after: u64,
    ready: VecDeque<SseEvent>,
}

impl Reader {
    /// The next message; `None` if the manager ends or the reader has lost its rights.
    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if !self.standing.holds() {
                return None;
            }
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            let (after, filter) = (self.after, self.filter.clone());
            let newer = move |manager: &Manager| {
                let from = position(manager, after);
                let page = manager.events_that(from, EVENTS_PER_ANSWER_MAX, |event| filter.wants(event));
                Some((from, page)).filter(|(from, page)| page.through > *from)
            };
            let Some((after, page)) = poll(&self.core, Topic::Events, STANDING_MS, newer).await.ok()? else {
                continue;
            };
            // A reader that begins at the first event has missed none.
            if after > 0 && page.oldest > after + 1 {
                let gap = EventsGap { first: after + 1, last: page.oldest - 1 };
                self.ready.extend(SseEvent::default().event("gap").json_data(gap).ok());
            }
            self.after = page.through;
            let message = |event: Event| SseEvent::default().id(event.seq.to_string()).json_data(event).ok();
            self.ready.extend(page.events.into_iter().filter_map(message));
        }
    }
}

/// Number of the event after which a reader goes on that has seen the events up to `after`. A log that came with a backup
/// may end before that number: the reader then goes on with the start of the manager that restored it.
fn position(manager: &Manager, after: u64) -> u64 {
    let state = manager.state();
    let newest = state.meta.last_event;
    if after <= newest {
        return after;
    }
    let mut starts = state.events.iter().rev();
    let start = starts.find(|event| matches!(event.kind, EventKind::ManagerStarted { .. }));
    start.map_or(newest, |start| start.seq - 1)
}

async fn follow(
    State(core): State<Core>,
    Extension(standing): Extension<RequestCredentials>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<EventStream, ApiError> {
    let filter = Filter::new(&core, &query).await?;
    let last =
        headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).and_then(|id| id.trim().parse().ok());
    let reader =
        Reader { core, standing, filter, after: last.unwrap_or(query.after), ready: VecDeque::new() };
    let messages = stream::unfold(reader, |mut reader| async move {
        let message = reader.next().await?;
        Some((Ok::<_, Infallible>(message), reader))
    });
    Ok(EventStream(Sse::new(messages).keep_alive(KeepAlive::default()).into_response()))
}

/// Server-sent events as a response, described for the OpenAPI document.
struct EventStream(Response);

impl IntoResponse for EventStream {
    fn into_response(self) -> Response {
        self.0
    }
}

impl OperationOutput for EventStream {
    type Inner = Event;

    fn inferred_responses(
        context: &mut GenContext,
        operation: &mut Operation,
    ) -> Vec<(Option<u16>, Described)> {
        // The OpenAPI document needs the schemas of the messages, although the stream itself has none.
        drop((
            Json::<Event>::operation_response(context, operation),
            Json::<EventsGap>::operation_response(context, operation),
        ));
        let description =
            "Server-sent events whose data is an Event, or of type `gap` with an EventsGap.".to_owned();
        let content = [("text/event-stream".to_owned(), MediaType::default())].into_iter().collect();
        vec![(Some(200), Described { description, content, ..Described::default() })]
    }
}
