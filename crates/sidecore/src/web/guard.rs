//! Who may ask. Other users of this host can connect to a TCP port of its loopback interface, and so can,
//! through a browser, every site that somebody here looks at.
//!
//! * A token is in the URL that is printed. The first request takes it into a cookie, and out of the address
//!   bar. Scripts do not see the cookie, and requests that other sites cause do not carry it. Browsers keep
//!   cookies by host, not by port, so its name is one that no other process of ours has.
//! * `Host` names this host: a site whose name was made to lead here (DNS rebinding) says its own.
//! * `Origin`, which browsers add to what scripts and forms send, is ours.
//! * Whatever is no GET has a header with a second token, which only our page can read.
//!
//! On a unix socket its permissions take the place of the token and of `Host`: behind it is a proxy, which
//! knows its users.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{header, HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The header with the second token.
const HEADER: &str = "x-sidecore-token";

const SAFETY: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// What is asked of a request.
pub struct Guard {
    pub token: String,
    /// What our page sends with what is no GET.
    pub second: String,
    /// Whether it may change anything.
    pub write: bool,
    cookie: String,
    /// The address of TCP that is listened on.
    address: Option<IpAddr>,
}

impl Guard {
    pub fn new(address: Option<IpAddr>, write: bool) -> Result<Guard, String> {
        let cookie = format!("sidecore-{}", &random()?[..8]);
        Ok(Guard { token: random()?, second: random()?, write, cookie, address })
    }

    /// Why a request is refused.
    fn look(&self, method: &Method, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        let host = text(header::HOST).unwrap_or_default();
        if self.address.is_some_and(|address| !names(host, address)) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "Host: this is not the address that `sidecore web` listens on",
            ));
        }
        let ours = |origin: &str| origin.split_once("://").is_some_and(|(_, from)| from == host);
        if text(header::ORIGIN).is_some_and(|origin| !ours(origin)) {
            return Err((StatusCode::FORBIDDEN, "Origin: another site asks"));
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies = cookies.flat_map(|all| all.split(';')).filter_map(|one| one.trim().split_once('='));
        if self.address.is_some()
            && !cookies.any(|(name, value)| name == self.cookie && same(value, &self.token))
        {
            return Err((
                StatusCode::UNAUTHORIZED,
                "open the whole URL that `sidecore web` printed: it has a token",
            ));
        }
        let second = headers.get(HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !matches!(*method, Method::GET | Method::HEAD) && !same(second, &self.second) {
            return Err((
                StatusCode::FORBIDDEN,
                "the request lacks the page's own token; load the page again",
            ));
        }
        Ok(())
    }
}

/// 128 bits as hexadecimal digits.
fn random() -> Result<String, String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| format!("cannot make a token: /dev/urandom: {e}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether they are equal, in a time that does not tell how far.
fn same(left: &str, right: &str) -> bool {
    let differs = left.bytes().zip(right.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
    left.len() == right.len() && differs == 0
}

/// Whether `Host` is this address or `localhost`. The port may be that of a tunnel (`ssh -L`).
fn names(host: &str, address: IpAddr) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost")
        || name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok_and(|ip| ip == address)
}

/// The guard before every handler.
pub async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let token = request.uri().query().and_then(|query| query.strip_prefix("token=")).map(str::to_owned);
    let mut response = match (guard.look(request.method(), request.headers()), token) {
        // From a page of ours, not by the answer's status: a browser sends the cookie only where our own site
        // sends it.
        (Err((StatusCode::UNAUTHORIZED, _)) | Ok(()), Some(token))
            if same(&token, &guard.token) && request.uri().path() == "/" =>
        {
            let cookie = format!("{}={token}; Path=/; HttpOnly; SameSite=Strict", guard.cookie);
            let to = "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=/\"><link rel=\"icon\" href=\"data:,\"><title>sidecore</title><a href=\"/\">sidecore</a>";
            (
                [(header::SET_COOKIE, cookie), (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned())],
                to,
            )
                .into_response()
        }
        (Ok(()), _) => next.run(request).await,
        (Err((status, why)), _) => (status, [(header::CONNECTION, "close")], why).into_response(),
    };
    for (name, value) in SAFETY {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_apart() {
        let [v4, v6] = ["127.0.0.1", "::1"].map(|it| it.parse::<IpAddr>().unwrap());
        for (host, address, ours) in [
            ("127.0.0.1:8484", v4, true),
            ("127.0.0.1", v4, true),
            ("LOCALHOST:1", v4, true),
            ("[::1]:8484", v6, true),
            ("127.0.0.2:8484", v4, false),
            ("127.0.0.1.example.org:8484", v4, false),
            ("localhost.example.org", v4, false),
            ("", v4, false),
            ("evil:127.0.0.1", v4, false),
        ] {
            assert_eq!(names(host, address), ours, "{host}");
        }
        assert!(same("ab", "ab") && !same("ab", "ac") && !same("ab", "abc") && !same("", "a"));
    }
}
