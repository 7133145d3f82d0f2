//! Protection against requests of foreign web pages. A page may have a browser send requests to any address that the
//! browser reaches, without an action of the user. So a request that changes something must have the content type JSON,
//! which pages of another origin cannot set without permission, and must not come from another origin than the
//! manager's own.
//!
//! A page can also resolve its own name to the manager's address (DNS rebinding). The page and the manager then have
//! one origin, under a name that is not the manager's. So changes from browsers are accepted under the manager's names
//! only. Over TLS, such a page fails, since the certificate is for other names. Without TLS, it could read, and a read
//! does not show whether a browser sent it; so without TLS, no client may read under another name.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::header::{CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, Method, Uri};

use super::error::ApiError;
use cxloe_fabric::api::ErrorCode;

/// Header in which browsers state the relation of a request's sender to the target.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Configuration of this machine's resolver.
const RESOLVER: &str = "/etc/resolv.conf";

/// Host names under which browsers may send changes.
#[derive(Debug, Clone, Default)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// The names of this machine, alone and in the resolver's search domains; the `allowed` names; and the name in the
    /// advertised URL.
    pub fn new(allowed: &[String], advertised: Option<&str>) -> Self {
        let resolver = std::fs::read_to_string(RESOLVER).unwrap_or_default();
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let own = host.into_iter().flat_map(|host| {
            let full: Vec<_> = domains(&resolver).map(|domain| format!("{host}.{domain}")).collect();
            full.into_iter().chain([host])
        });
        let advertised = advertised.and_then(|url| url.parse::<Uri>().ok()?.host().map(str::to_owned));
        let names = allowed.iter().cloned().chain(own).chain(advertised);
        Self(names.map(|name| name.to_ascii_lowercase()).collect())
    }

    /// True if `host`, without a port, is an address or one of the manager's names.
    fn has(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let address = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // The zone of an IPv6 address follows an escaped percent sign (RFC 6874).
            Some(v6) => v6.split_once("%25").map_or(v6, |(v6, _)| v6).parse::<Ipv6Addr>().is_ok(),
            None => host.parse::<Ipv4Addr>().is_ok(),
        };
        let local = host == "localhost" || host.ends_with(".localhost");
        address || local || self.0.contains(&host)
    }
}

/// Search domains in a resolver's configuration (resolv.conf): a machine's own name is often short, while users append
/// the domain.
fn domains(resolver: &str) -> impl Iterator<Item = &str> {
    let lines = resolver.lines().map(str::split_whitespace);
    let named =
        lines.filter_map(|mut words| matches!(words.next(), Some("search" | "domain")).then_some(words));
    named.flatten().map(|domain| domain.trim_matches('.')).filter(|domain| !domain.is_empty())
}

/// Refuses a request that would change something and that a foreign page may have sent; on a connection without TLS
/// (`plain`), also a request that would read under a name that is not the manager's.
///
/// # Errors
/// `foreign_origin` and `not_json`.
pub fn check(method: &Method, headers: &HeaderMap, names: &HostNames, plain: bool) -> Result<(), ApiError> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?").to_owned());
    let foreign = |what: String| {
        let hint = "a page of another origin may do nothing here; under a name of its own, the manager is started with \
                    --allow-host NAME";
        Err(ApiError::new(ErrorCode::ForeignOrigin, format!("this request comes {what}"), hint))
    };
    let unknown =
        |host: &str| foreign(format!("to {host:?}, which is not a registered name of this manager"));
    if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
        let mut hosts = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?"));
        let other = hosts.find(|host| plain && !names.has(without_port(host)));
        return other.map_or(Ok(()), unknown);
    }
    // `none` means that a user, and no page, caused the request.
    if let Some(site) = text(&SEC_FETCH_SITE).filter(|site| site != "same-origin" && site != "none") {
        return foreign(format!("from another site ({SEC_FETCH_SITE}: {site})"));
    }
    if let Some(origin) = text(&ORIGIN) {
        let host = text(&HOST).unwrap_or_default();
        let same =
            origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(&host));
        if !same || headers.get_all(ORIGIN).iter().count() > 1 {
            return foreign(format!("from {origin:?}, and this is {host:?}"));
        }
        if !names.has(without_port(&host)) {
            return unknown(&host);
        }
    }
    let json = text(&CONTENT_TYPE).is_some_and(|kind| {
        kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    });
    if json {
        return Ok(());
    }
    let hint = "send Content-Type: application/json, also where there is no body";
    Err(ApiError::new(
        ErrorCode::NotJson,
        "a request that changes something has to say that it is JSON",
        hint,
    ))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // Colons of an IPv6 address in brackets do not precede a port.
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(method: &Method, headers: &[(&str, &str)]) -> Option<ErrorCode> {
        asked(method, headers, false)
    }

    fn asked(method: &Method, headers: &[(&str, &str)], plain: bool) -> Option<ErrorCode> {
        let names = HostNames(vec!["gmm".into(), "gmm.lab".into(), "fabric.example".into()]);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        check(method, &map, &names, plain).err().map(|error| error.0.code)
    }

    const JSON: (&str, &str) = ("content-type", "application/json");

    #[test]
    fn what_is_no_browser_has_to_say_that_it_is_json() {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert_eq!(refused(&method, &[("host", "anything:1"), JSON]), None);
            assert_eq!(refused(&method, &[("host", "gmm")]), Some(ErrorCode::NotJson));
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
            assert_eq!(refused(&Method::POST, &[("content-type", kind)]), Some(ErrorCode::NotJson), "{kind}");
        }
        assert_eq!(refused(&Method::POST, &[("content-type", "Application/JSON; charset=utf-8")]), None);
        assert_eq!(refused(&Method::GET, &[("origin", "http://evil.example")]), None, "it changes nothing");
    }

    #[test]
    fn pages_of_other_origins_change_nothing() {
        let foreign = Some(ErrorCode::ForeignOrigin);
        for (origin, host) in [
            ("http://evil.example", "10.0.0.1:7440"),
            ("http://evil.example", "evil.example"),
            ("http://evil.example:7440", "evil.example:7440"),
            ("http://gmm.evil.example", "gmm:7440"),
            ("http://gmm.evil.example", "gmm.evil.example"),
            ("http://notgmm", "notgmm"),
            ("null", "gmm"),
            ("http://gmm", "gmm:7440"),
            ("garbage", "garbage"),
        ] {
            assert_eq!(
                refused(&Method::POST, &[("origin", origin), ("host", host), JSON]),
                foreign,
                "{origin} {host}"
            );
        }
        for host in [
            "10.0.0.1:7440",
            "[::1]:7440",
            "[::1]",
            "[fe80::1%25eth0]:7440",
            "localhost:7440",
            "GMM:7440",
            "gmm.lab:7440",
            "fabric.example",
        ] {
            let origin = format!("http://{host}");
            assert_eq!(refused(&Method::POST, &[("origin", &origin), ("host", host), JSON]), None, "{host}");
        }
        let host = ("host", "gmm");
        for (site, answer) in
            [("cross-site", foreign), ("same-site", foreign), ("same-origin", None), ("none", None)]
        {
            assert_eq!(refused(&Method::DELETE, &[("sec-fetch-site", site), host, JSON]), answer, "{site}");
        }
        let twice = [("origin", "http://gmm"), ("origin", "http://evil.example"), host, JSON];
        assert_eq!(refused(&Method::POST, &twice), foreign);
    }

    #[test]
    fn without_tls_nobody_reads_under_a_name_that_is_led_here() {
        let own = [
            "10.0.0.1:7440",
            "[::1]:7440",
            "[fe80::1%25eth0]:7440",
            "[fe80::1%25eth0]",
            "localhost:7440",
            "GMM:7440",
            "gmm.lab:7440",
            "fabric.example",
        ];
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            for host in own {
                assert_eq!(asked(&method, &[("host", host)], true), None, "{host}");
            }
            for host in [
                "evil.example",
                "evil.example:7440",
                "gmmm",
                "gmm.evil.example",
                "10.0.0.1.evil.example",
                "fe80::1%25evil.example",
                "[evil.example%25eth0]",
                "",
            ] {
                let answer = asked(&method, &[("host", host)], true);
                assert_eq!(answer, Some(ErrorCode::ForeignOrigin), "{host:?}");
                assert_eq!(
                    asked(&method, &[("host", host)], false),
                    None,
                    "the certificate is for other names"
                );
            }
            let twice = [("host", "gmm"), ("host", "evil.example")];
            assert_eq!(asked(&method, &twice, true), Some(ErrorCode::ForeignOrigin));
            assert_eq!(asked(&method, &[], true), None, "no browser leaves it out");
        }
    }

    #[test]
    fn a_machine_has_its_name_in_the_domains_that_it_looks_in() {
        let resolver =
            "# search none\nnameserver 10.0.0.53\nsearch lab. rack7.lab\ndomain example\nsearch .\n";
        assert_eq!(domains(resolver).collect::<Vec<_>>(), ["lab", "rack7.lab", "example"]);
    }
}
