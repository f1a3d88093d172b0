//! The OpenAPI document, made of what the daemon routes by: no path is served that is not described, and
//! parameters, bodies and answers are those of the types that the handler takes and returns. Types have their
//! descriptions from `sidecore_engine::util::form`.

use std::future::Future;

use axum::extract::{Path, Query, State};
use axum::handler::Handler;
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use axum::routing::{on, MethodFilter};
use axum::{Json, Router};
use serde_json::{json, Map, Value};
use sidecore_engine::state::status::VERSION;
use sidecore_engine::util::form::{Form, Part, Scope, Value as Formed};

use super::http::{Control, Refusal};
use crate::api::{EventView, Refused};
use crate::options::told;

/// Routes, and what is said of them.
#[derive(Default)]
pub struct Api {
    /// Has every route.
    pub routes: Router<Control>,
    paths: Map<String, Value>,
    schemas: Schemas,
}

/// The schemas of types, by their names.
#[derive(Default)]
struct Schemas(Map<String, Value>);

/// An operation, while it is described.
pub struct Operation<'a> {
    schemas: &'a mut Schemas,
    parameters: Vec<Value>,
    body: Option<Value>,
    /// The content type of its answer.
    kind: &'a str,
    answers: Value,
}

/// Events as text.
pub struct EventStream(pub Response);

impl IntoResponse for EventStream {
    fn into_response(self) -> Response {
        self.0
    }
}

/// A type that handlers take as an argument, or answer.
pub trait Described {
    /// Adds to `operation` what this type is there: a parameter, the body or the answer.
    fn describe(operation: &mut Operation<'_>);
}

/// A handler whose arguments and answer are all described.
pub trait Operates<Arguments> {
    /// Adds its arguments and its answer to `operation`.
    fn describe(operation: &mut Operation<'_>);
}

macro_rules! operates {
    ($($argument:ident)*) => {
        impl<H, A, $($argument: Described),*> Operates<($($argument,)*)> for H
        where
            H: Fn($($argument),*) -> A,
            A: Future<Output: Described>,
        {
            fn describe(operation: &mut Operation<'_>) {
                $($argument::describe(operation);)*
                A::Output::describe(operation);
            }
        }
    };
}

operates!();
operates!(A1);
operates!(A1 A2);
operates!(A1 A2 A3);

macro_rules! describe {
    ($($type:ty $([$generic:ident: $formed:ident])?: |$operation:pat_param| $say:expr;)+) => {$(
        impl$(<$generic: $formed>)? Described for $type {
            fn describe($operation: &mut Operation<'_>) {
                $say
            }
        }
    )+};
}

describe! {
    State<Control>: |_| ();
    HeaderMap: |_| ();
    // Parts of a path are described where it is served.
    Path<T> [T: Sized]: |_| ();
    Query<T> [T: Formed]: |operation| operation.asks(T::FORM);
    Json<T> [T: Formed]: |operation| operation.answers(T::FORM);
    EventStream: |operation| operation.answers(EventView::FORM);
    Response: |operation| operation.answers(Form::Any);
    Result<T, Refusal> [T: Described]: |operation| T::describe(operation);
}

impl Operation<'_> {
    fn parameter(&mut self, place: &str, name: &str, required: bool, about: &str, schema: Value) {
        self.parameters.push(
            json!({"name": name, "in": place, "required": required, "description": about, "schema": schema}),
        );
    }

    /// Has the keys of `form` stand in the query of the request.
    fn asks(&mut self, form: Form) {
        let Form::Part(part) = form else { return };
        for key in part.keys {
            let schema = self.schemas.of(key.form);
            self.parameter("query", key.name, key.scope == Scope::Must, key.help(), schema);
        }
    }

    /// Has the request take a body of `form`; where that is a list, one of its items may stand for itself.
    pub fn takes(&mut self, form: Form) {
        let mut schema = self.schemas.of(form);
        if let Form::Each(one) = form {
            schema = json!({"oneOf": [self.schemas.of(*one), schema]});
        }
        self.body = Some(json!({"required": true, "content": {"application/json": {"schema": schema}}}));
    }

    /// Has the operation answer `form`.
    fn answers(&mut self, form: Form) {
        let about = if let Form::Part(part) = form { part.lines.trim_start() } else { "" };
        let schema = self.schemas.of(form);
        self.answers = json!({
            "200": {"description": about, "content": {self.kind: {"schema": schema}}},
            "default": {"$ref": "#/components/responses/Refused"},
        });
    }
}

impl Schemas {
    /// The schema of a type.
    fn of(&mut self, form: Form) -> Value {
        match form {
            Form::Number(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
            Form::OneOf(words) => json!({"type": "string", "enum": words}),
            Form::Text("NAME", _) => json!({"type": "string"}),
            Form::Text(_, like) => json!({"type": "string", "examples": [like]}),
            Form::List(_, each, _) | Form::Each(each) => json!({"type": "array", "items": self.of(*each)}),
            Form::Count => json!({"type": "integer", "minimum": 0}),
            Form::Any => json!({}),
            Form::Truth => json!({"type": "boolean"}),
            Form::Named(each) => json!({"type": "object", "additionalProperties": self.of(*each)}),
            Form::OrNull(form) => json!({"oneOf": [self.of(*form), {"type": "null"}]}),
            Form::Part(part) => {
                if !self.0.contains_key(part.name) {
                    let mut schema = json!({"type": "object", "description": part.lines.trim_start(), "required": [], "properties": {}});
                    if part.closed {
                        schema["additionalProperties"] = false.into();
                    }
                    self.fill(part, &mut schema);
                    self.0.insert(part.name.to_owned(), schema);
                }
                let about = &self.0[part.name]["description"];
                debug_assert_eq!(about, part.lines.trim_start(), "two types are called {}", part.name);
                json!({"$ref": format!("#/components/schemas/{}", part.name)})
            }
        }
    }

    /// Adds the keys of `part`.
    fn fill(&mut self, part: &Part, object: &mut Value) {
        for key in part.keys {
            if let (Form::Part(inner), "") = (key.form, key.name) {
                self.fill(inner, object);
                continue;
            }
            let mut schema = self.of(key.form);
            schema["description"] = match key.form {
                _ if !part.closed => key.help().into(),
                Form::Text(how, _) if how != "NAME" => format!("{}; {how}", told(key)).into(),
                _ => told(key).into(),
            };
            if key.name == "version" {
                schema["const"] = VERSION.into();
            }
            object["properties"][key.name] = schema;
            if let (Scope::Must, Some(required)) = (key.scope, object["required"].as_array_mut()) {
                required.push(key.name.into());
            }
        }
    }
}

impl Api {
    /// Serves an operation.
    pub fn serve<H, T: 'static, A>(
        mut self,
        method: Method,
        path: &str,
        handler: H,
        summary: &str,
        kind: &str,
    ) -> Api
    where
        H: Handler<T, Control> + Operates<A>,
    {
        let (schemas, parameters, answers) = (&mut self.schemas, Vec::new(), Value::Null);
        let mut operation = Operation { schemas, parameters, body: None, kind, answers };
        let parts: Vec<&str> = path.split('/').collect();
        for name in parts.iter().filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
            let about = match name {
                "ports" => "Names of the ports, joined by `+`.".to_owned(),
                "name" => format!("Name of one of the {}.", parts[2]),
                name => format!("Name of the {name}."),
            };
            operation.parameter("path", name, true, &about, json!({"type": "string"}));
        }
        H::describe(&mut operation);
        let Operation { parameters, body, answers, .. } = operation;
        let mut about = json!({"summary": summary, "parameters": parameters, "responses": answers});
        body.into_iter().for_each(|body| about["requestBody"] = body);
        self.paths.entry(path).or_insert_with(|| json!({}))[method.as_str().to_lowercase()] = about;
        // Each method that is written in the table has a filter.
        if let Ok(filter) = MethodFilter::try_from(method) {
            self.routes = self.routes.route(path, on(filter, handler));
        }
        self
    }

    /// The document.
    pub fn document(mut self) -> String {
        let refused = self.schemas.of(Refused::FORM);
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "sidecore control socket",
                "version": VERSION.to_string(),
                "description": "HTTP over the daemon's Unix socket (default /run/sidecore/control.sock): \
                    curl --unix-socket /run/sidecore/control.sock http://sidecore/v1/ports",
                "license": {"name": "MIT OR Apache-2.0"},
            },
            "servers": [{"url": "http://sidecore"}],
            "paths": self.paths,
            "components": {
                "schemas": self.schemas.0,
                "responses": {"Refused": {
                    "description": "Refused: 400 invalid request, 404 there is no such thing, 409 conflict, 413 too large a body, \
                        500 the host refused an operation, 503 too many captures or readers of events.",
                    "content": {"application/json": {"schema": refused}},
                }},
            },
        });
        format!("{document:#}\n")
    }
}
