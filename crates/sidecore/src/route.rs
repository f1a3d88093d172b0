//! `route add`, `route del`: routes of a router while it runs.

use hyper::Method;
use serde_json::{json, Map, Value};

use crate::change::{client, report};
use crate::cli::{OfDaemon, RouteAddArgs, RouteCommand, RouteDelArgs};
use crate::client::segment;
use crate::Outcome;

/// `route`.
pub fn run(command: &RouteCommand) -> Outcome {
    match command {
        RouteCommand::Add(args) => add(args),
        RouteCommand::Del(args) => del(args),
    }
}

fn add(args: &OfDaemon<RouteAddArgs>) -> Outcome {
    let mut route = way(&args.way)?;
    route.insert("prefix".to_owned(), Value::from(args.prefix.as_str()));
    let path = format!("/v1/routers/{}/routes", segment(&args.router));
    report(&client(&args.control)?.send(Method::POST, &path, &route)?)
}

/// The words behind the prefix, as the keys of a route.
fn way(words: &[String]) -> Result<Map<String, Value>, String> {
    let mut route = Map::new();
    let mut put = |key: &str, value: Value| match route.insert(key.to_owned(), value) {
        None => Ok(()),
        Some(_) => Err(format!("`{key}` is given twice")),
    };
    let mut words = words.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        match word {
            "via" => {
                let mut gateways = Vec::new();
                while let Some(gateway) = words.next_if(|word| *word != "port") {
                    gateways.push(gateway);
                }
                if gateways.is_empty() {
                    return Err("`via` names no gateway".to_owned());
                }
                put("via", json!(gateways))?;
            }
            "port" => put("port", json!(words.next().ok_or("`port` names none")?))?,
            "blackhole" | "unreachable" | "prohibit" => put(word, json!(true))?,
            other => {
                return Err(format!(
                    "{other:?} is not allowed; allowed: via GATEWAY..., port NAME, blackhole, unreachable, prohibit"
                ))
            }
        }
    }
    Ok(route)
}

fn del(args: &OfDaemon<RouteDelArgs>) -> Outcome {
    let path = format!("/v1/routers/{}/routes?prefix={}", segment(&args.router), segment(&args.prefix));
    report(&client(&args.control)?.delete(&path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_read() {
        let read = |text: &str| {
            way(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
                .map(|keys| Value::Object(keys).to_string())
        };
        assert_eq!(read("via 10.0.0.1 10.0.0.2").unwrap(), r#"{"via":["10.0.0.1","10.0.0.2"]}"#);
        assert_eq!(read("via fe80::1 port a").unwrap(), r#"{"port":"a","via":["fe80::1"]}"#);
        assert_eq!(read("port a").unwrap(), r#"{"port":"a"}"#);
        assert_eq!(read("prohibit").unwrap(), r#"{"prohibit":true}"#);
        for bad in ["via", "port", "10.0.0.1", "via port a", "port a port b"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
