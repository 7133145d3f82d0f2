//! The web view of the fabric: a page built into the program, which uses the REST interface of its manager. Every
//! manager serves the page at any time; a follower redirects `/` to the leader, like other requests (see
//! [`super::leader_election`]).
//!
//! The content security policy lets the page load, run and request only content of its own origin, and forbids the page
//! to turn text into markup (`require-trusted-types-for`): names that nodes and clients chose remain text.

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

/// Files that the page includes: path, content type, content.
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

/// The page, as a response with security headers.
pub fn page() -> Response {
    content("text/html", PAGE)
}

/// Routes of the files that the page includes.
pub fn parts<S: Clone + Send + Sync + 'static>() -> Router<S> {
    PARTS.iter().fold(Router::new(), |router, &(path, kind, text)| {
        router.route(path, get(move || async move { content(kind, text) }))
    })
}

/// A response that is never cached, so that page and manager are always of one version.
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

    /// The texts between each `before` and the next quotation mark.
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
