//! The web view of the fabric: a page that lies in the program itself and asks the REST interface of the manager it came
//! from. The page is served by every manager at any time; whoever does not lead sends `/` on to the leader, as anything
//! else (see [`super::leader_election`]).
//!
//! The page may load, run and ask nothing but what comes from here, and cannot turn text into markup
//! (`require-trusted-types-for`): what nodes and clients call things stays text.

use axum::Router;
use axum::http::HeaderName;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const PAGE: &str = include_str!("../../web/index.html");
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const SAME_ORIGIN: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// What the page includes: path, type, content.
const PARTS: &[(&str, &str, &str)] = &[
    ("/ui/style.css", "text/css", include_str!("../../web/style.css")),
    ("/ui/icon.svg", "image/svg+xml", include_str!("../../web/icon.svg")),
    ("/ui/main.js", "text/javascript", include_str!("../../web/main.js")),
    ("/ui/api.js", "text/javascript", include_str!("../../web/api.js")),
    ("/ui/dom.js", "text/javascript", include_str!("../../web/dom.js")),
    ("/ui/events.js", "text/javascript", include_str!("../../web/events.js")),
    ("/ui/format.js", "text/javascript", include_str!("../../web/format.js")),
    ("/ui/problems.js", "text/javascript", include_str!("../../web/problems.js")),
    ("/ui/details.js", "text/javascript", include_str!("../../web/details.js")),
    ("/ui/login.js", "text/javascript", include_str!("../../web/login.js")),
    ("/ui/nodes.js", "text/javascript", include_str!("../../web/nodes.js")),
    ("/ui/regions.js", "text/javascript", include_str!("../../web/regions.js")),
    ("/ui/traffic.js", "text/javascript", include_str!("../../web/traffic.js")),
];

/// The page itself.
pub fn page() -> Response {
    content("text/html", PAGE)
}

/// What the page includes.
pub fn parts<S: Clone + Send + Sync + 'static>() -> Router<S> {
    PARTS.iter().fold(Router::new(), |router, &(path, kind, text)| {
        router.route(path, get(move || async move { content(kind, text) }))
    })
}

/// Asked for anew each time: page and manager are always of one version.
fn content(kind: &str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, format!("{kind}; charset=utf-8")),
        (CACHE_CONTROL, "no-cache".to_owned()),
        (CONTENT_SECURITY_POLICY, POLICY.to_owned()),
        (REFERRER_POLICY, "no-referrer".to_owned()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (SAME_ORIGIN, "same-origin".to_owned()),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What stands between `before` and the next quotation mark, wherever `before` stands.
    fn after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn what_the_page_includes_is_served_and_nothing_else() {
        let mut included: BTreeSet<String> =
            ["src=\"/ui/", "href=\"/ui/"].iter().flat_map(|at| after(PAGE, at)).map(str::to_owned).collect();
        for (_, _, text) in PARTS.iter().filter(|(path, ..)| path.ends_with(".js")) {
            included.extend(after(text, "from \"./").map(str::to_owned));
        }
        let served: BTreeSet<String> =
            PARTS.iter().map(|(path, ..)| path.trim_start_matches("/ui/").to_owned()).collect();
        assert_eq!(included, served);
    }

    #[test]
    fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
        assert!(!PAGE.contains("style=") && !PAGE.contains("<script>") && !PAGE.contains(" onclick"));
        for (path, _, text) in PARTS.iter().chain([&("/", "text/html", PAGE)]) {
            let elsewhere = text.replace("http://www.w3.org/2000/svg", "").contains("://");
            assert!(!elsewhere, "{path} names another place");
        }
    }
}
