//! The OpenAPI document beside a daemon: what it answers is what the document says, and nothing else.

use serde_json::{json, Value};

use crate::rig::Testbed;

/// What is wrong with `value` where `document` has `schema` for it. A key that has no schema is wrong:
/// clients ignore it, but nobody would know what it means.
fn complaints(document: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.strip_prefix('#').unwrap()).expect(reference);
        return complaints(document, target, value, at, found);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| {
            let mut found = Vec::new();
            complaints(document, choice, value, at, &mut found);
            found.is_empty()
        };
        if choices.iter().filter(fits).count() != 1 {
            found.push(format!("{at}: {value} is none of {choices:?}"));
        }
        return;
    }
    let sound = match schema["type"].as_str() {
        None => true,
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("integer") => {
            let (least, most) = (schema["minimum"].as_u64().unwrap(), schema["maximum"].as_u64());
            value.as_u64().is_some_and(|it| it >= least && most.is_none_or(|most| it <= most))
        }
        other => panic!("{at}: type {other:?}"),
    };
    let listed = schema["enum"].as_array().is_none_or(|words| words.contains(value));
    let fixed = schema["const"].is_null() || schema["const"] == *value;
    if !(sound && listed && fixed) {
        found.push(format!("{at}: {value} is not {schema}"));
    }
    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
        complaints(document, &schema["items"], item, &format!("{at}[{n}]"), found);
    }
    let missing = |key: &&Value| value.get(key.as_str().unwrap()).is_none();
    let required = schema["required"].as_array().into_iter().flatten();
    found.extend(required.filter(missing).map(|key| format!("{at}: {key} is missing")));
    for (key, item) in value.as_object().into_iter().flatten() {
        let known = schema["properties"].get(key).or(schema.get("additionalProperties"));
        match known.filter(|known| known.is_object()) {
            Some(known) => complaints(document, known, item, &format!("{at}.{key}"), found),
            None if schema.get("type").is_some() => found.push(format!("{at}: {key} is not described")),
            None => {}
        }
    }
}

const PARTS: &str = r#"
switch = [{name = "s", ageing = 100}]
router = [{name = "r", routes = [{prefix = "10.9.0.0/16", via = "10.0.0.2"}, {prefix = "10.8.0.0/16", blackhole = true}]}]
tenant = [{name = "t", weight = 50, budget = "20%"}]
group = [{name = "g", weights = ["one:5"]}]
acl = [{name = "l", rules = ["permit src=10.0.0.0/8", "deny"]}]

[[port]]
name = "a"
kind = "vhost-user"
where = "DIR/a.sock"
tenant = "t"
acl-in = "l"
mac = "52:54:00:00:00:01"
mac-limit = 4
fdb = ["52:54:00:00:00:02"]
mode = "0600"

[[port]]
name = "b"
kind = "e1000"
where = "DIR/b.sock"
vlan = 7
queue = 64

[[port]]
name = "c"
kind = "ring"
where = "DIR/c"
switch = "s"

[[port]]
name = "d"
kind = "blk"
where = "DIR/d.sock"
file = "ram:1M"

[[port]]
name = "on"
kind = "switch"
where = "lan"
router = "r"
address = "10.0.0.1/24"

[[port]]
name = "front"
kind = "group"
where = "g"
interface = 0

[[port]]
name = "one"
kind = "rtl8169"
where = "DIR/one.sock"
group = "g"
member = "one"
interface = 0
"#;

#[test]
fn every_answer_is_as_it_is_described() {
    let bed = Testbed::new();
    bed.write("parts.toml", PARTS);
    let _daemon = bed.daemon(&["parts.toml", "--cores", "0"]);
    let document: Value = serde_json::from_str(&bed.http("GET", "/openapi.json", "").1).unwrap();
    let mut found = Vec::new();
    let mut check = |method: &str, path: &str, request: &str, body: Value| {
        let operation = &document["paths"][path][method.to_lowercase()];
        let (status, text) = bed.http(method, request, &body.to_string());
        let asked = &operation["requestBody"]["content"]["application/json"]["schema"];
        let answers = &operation["responses"];
        let (answer, kind) = match status {
            200 => (&answers["200"], answers["200"]["content"].as_object().unwrap().keys().next().unwrap()),
            _ => (document.pointer("/components/responses/Refused").unwrap(), &"application/json".to_owned()),
        };
        if status == 200 && asked.is_object() {
            complaints(&document, asked, &body, &format!("body of {method} {request}"), &mut found);
        }
        let schema = &answer["content"][kind.as_str()]["schema"];
        let values: Vec<&str> = match kind.as_str() {
            "application/json" => vec![&text],
            "text/event-stream" => text.lines().filter_map(|line| line.strip_prefix("data: ")).collect(),
            _ => vec![],
        };
        for value in values {
            let value: Value =
                serde_json::from_str(value).unwrap_or_else(|e| panic!("{request}: {e}: {text}"));
            complaints(&document, schema, &value, &format!("{method} {request}"), &mut found);
        }
        status
    };
    for (path, methods) in document["paths"].as_object().unwrap() {
        let name = match path.split('/').nth(2) {
            Some("routers") => "r",
            _ => "a",
        };
        let mut request = path.replace("{name}", name);
        // What does not end by itself is another test's.
        if methods["get"].is_null() || path.starts_with("/v1/capture") {
            continue;
        }
        request += match path.as_str() {
            "/v1/events" => "?follow=false",
            "/v1/routers/{name}/explain" => "?to=10.9.1.1",
            _ => "",
        };
        assert_eq!(check("GET", path, &request, Value::Null), 200, "{request}");
    }
    let config: Value = serde_json::from_str(&bed.http("GET", "/v1/config", "").1).unwrap();
    let frame = format!("525400000002525400000001{:04x}{}", 0x0800, "0".repeat(92));
    let one = "/v1/ports/{name}";
    let route = json!({"prefix": "10.7.0.0/16", "unreachable": true});
    for (method, path, request, body, status) in [
        ("PUT", "/v1/config", "/v1/config?dry-run=true", config, 200),
        ("PATCH", one, "/v1/ports/a", json!({"mtu": 9000, "mac-limit": null}), 200),
        ("PATCH", one, "/v1/ports/no", json!({"mtu": 9000}), 404),
        ("POST", "/v1/ports/{name}/explain", "/v1/ports/a/explain", json!({"frame": frame}), 200),
        ("POST", "/v1/ports/{name}/move", "/v1/ports/a/move", json!({"core": 0}), 409),
        ("POST", "/v1/ports/{name}/resize", "/v1/ports/d/resize", Value::Null, 409),
        ("POST", "/v1/ports/{name}/restart", "/v1/ports/b/restart", Value::Null, 200),
        ("POST", "/v1/routers/{name}/routes", "/v1/routers/r/routes", route, 200),
        ("POST", "/v1/switches", "/v1/switches", json!({"name": "x", "ageing": 9}), 200),
        ("POST", "/v1/tenants", "/v1/tenants", json!([{"name": "x", "rate": "5k"}, {"name": "y"}]), 200),
        (
            "PATCH",
            "/v1/groups/{name}/members/{member}",
            "/v1/groups/g/members/one",
            json!({"drain": true}),
            200,
        ),
        ("PATCH", "/v1/cores", "/v1/cores", json!({"active": 1}), 200),
        ("PATCH", "/v1/daemon", "/v1/daemon", json!({"log": "info"}), 200),
        ("DELETE", "/v1/tenants", "/v1/tenants?names=x,y", Value::Null, 200),
        ("DELETE", one, "/v1/ports/c", Value::Null, 200),
    ] {
        assert_eq!(check(method, path, request, body), status, "{method} {request}");
    }
    assert_eq!(found, Vec::<String>::new());
}

/// One part may stand for a list of one. Nothing does not, nor do two that are no list.
#[test]
fn a_body_is_one_value() {
    let bed = Testbed::new();
    let _daemon = bed.daemon(&["--cores", "0"]);
    let switches = || bed.ok(&["show", "switches", "--json"]);
    let before = switches();
    for body in ["", " ", r#"{"name": "x"}, {"name": "y"}"#, r#"{"name": "x"}]"#, r#"[{"name": "x"}"#, "null"]
    {
        let (status, text) = bed.http("POST", "/v1/switches", body);
        assert!(status == 400 && text.contains("request body: "), "{body:?}: {status} {text}");
    }
    assert_eq!(switches(), before);
    for body in [r#" {"name": "x"} "#, r#"[{"name": "y"}, {"name": "z"}]"#, "[]"] {
        assert_eq!(bed.http("POST", "/v1/switches", body).0, 200, "{body:?}");
    }
}

#[test]
fn every_reference_of_the_document_leads_somewhere_and_every_key_is_explained() {
    fn walk(document: &Value, value: &Value) {
        if let Some(reference) = value["$ref"].as_str() {
            assert!(document.pointer(reference.strip_prefix('#').unwrap()).is_some(), "{reference}");
        }
        value.as_object().into_iter().flatten().for_each(|(_, value)| walk(document, value));
        value.as_array().into_iter().flatten().for_each(|value| walk(document, value));
    }
    let document: Value = serde_json::from_str(&Testbed::new().ok(&["openapi"])).unwrap();
    walk(&document, &document);
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(schema["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        for (key, property) in schema["properties"].as_object().unwrap() {
            let told = property["description"].as_str().unwrap_or_default();
            assert!(!told.is_empty() && !told.contains("[`"), "{name}.{key}: {told}");
        }
    }
}
