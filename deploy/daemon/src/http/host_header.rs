//! The `Host` header: HTTP/1.1 requires exactly one, and status 400 if it is missing, repeated or no host (RFC 9112,
//! 3.2).

use cxloe_fabric::api::{ErrorBody, ErrorCode};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Request, Response, StatusCode, Version};

/// Checks the `Host` header of a request.
///
/// # Errors
/// The fault of the header, as text for [`refusal`].
pub fn check<B>(request: &Request<B>) -> Result<(), &'static str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) if request.version() < Version::HTTP_11 => Ok(()),
        (None, _) => Err("this request of HTTP/1.1 has no header Host"),
        (Some(_), Some(_)) => Err("this request has more than one header Host"),
        (Some(host), None) if is_host(host.as_bytes()) => Ok(()),
        (Some(_), None) => Err("the header Host of this request is no host"),
    }
}

/// True for a host with or without a port, and for an empty value, which stands for a URL without a host.
fn is_host(value: &[u8]) -> bool {
    let authority = || Authority::try_from(value).is_ok_and(|authority| !authority.as_str().contains('@'));
    value.is_empty() || authority()
}

/// Answer with status 400 that names `fault`.
pub fn refusal<B: From<String>>(fault: &'static str) -> Response<B> {
    let hint =
        "send one header Host, with the name or the address of the server, and a port where it has one";
    let code = ErrorCode::BadRequest;
    let body = ErrorBody { error: fault.to_owned(), code, hint: hint.to_owned() };
    let mut response = Response::new(B::from(serde_json::to_string(&body).unwrap_or_default()));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_host_and_it_is_one() {
        let checked = |version, hosts: &[&str]| {
            let mut request = Request::new(());
            *request.version_mut() = version;
            for host in hosts {
                request.headers_mut().append(HOST, host.parse().unwrap());
            }
            check(&request).is_ok()
        };
        for good in [
            "",
            "gmm",
            "gmm:7440",
            "10.0.0.1:7440",
            "[fd00::1]:7440",
            "[::1]",
            "[fe80::1%25eth0]",
            "[fe80::1%25eth0]:7440",
        ] {
            assert!(checked(Version::HTTP_11, &[good]), "{good}");
        }
        for bad in ["a b", "user@gmm", "gmm/", "a:b:c", "[::1", "gmm%25eth0"] {
            assert!(!checked(Version::HTTP_11, &[bad]), "{bad}");
            assert!(!checked(Version::HTTP_10, &[bad]), "{bad}");
        }
        assert!(!checked(Version::HTTP_11, &[]));
        assert!(checked(Version::HTTP_10, &[]), "HTTP/1.0 has no such header");
        assert!(!checked(Version::HTTP_11, &["gmm", "gmm"]));
    }
}
