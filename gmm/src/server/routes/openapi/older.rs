//! The document in OpenAPI 3.0, which some generators of clients require. A schema of 3.0 is not JSON Schema: null,
//! constants and exclusive limits are written in other ways, and a `$ref` stands alone.

use serde_json::{Map, Value, json};

use super::schemas::{component, each_schema, operations};

/// OpenAPI version that the converted document declares.
const VERSION: &str = "3.0.3";

/// Fields of schemas that 3.0 does not have, and that have no counterpart there.
const UNKNOWN: [&str; 9] = [
    "$schema",
    "$defs",
    "$comment",
    "contentEncoding",
    "contentMediaType",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "unevaluatedProperties",
];

/// Fields of a schema that concern only texts, or only numbers.
const OF_TEXTS: [&str; 3] = ["pattern", "minLength", "maxLength"];
const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Converts a document of OpenAPI 3.1 to 3.0.
///
/// The result lacks what 3.0, or the generators that read 3.0, cannot express: certificates do not identify callers;
/// failures are described by the classes 4XX and 5XX, so that each operation has one type of failure; if successful
/// responses differ in their bodies, no body is described; and a choice of texts is any text.
pub fn downgrade(document: &Value) -> Value {
    let mut document = document.clone();
    document["openapi"] = VERSION.into();
    forget_certificates(&mut document);
    for operation in operations(&mut document) {
        if let Some(Value::Object(responses)) = operation.get_mut("responses") {
            unite_failures(responses);
            unite_successes(responses);
        }
    }
    if let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas") {
        unite_texts(schemas);
    }
    each_schema(&mut document, &mut |schema| {
        if let Value::Object(fields) = schema {
            convert(fields);
        }
    });
    document
}

/// Removes the security schemes that came with 3.1: mutual TLS.
fn forget_certificates(document: &mut Value) {
    let mut gone = Vec::new();
    if let Some(Value::Object(schemes)) = document.pointer_mut("/components/securitySchemes") {
        schemes.retain(|name, scheme| {
            let kept = scheme["type"] != "mutualTLS";
            if !kept {
                gone.push(name.clone());
            }
            kept
        });
    }
    for operation in operations(document) {
        if let Some(Value::Array(ways)) = operation.get_mut("security") {
            ways.retain(|way| !gone.iter().any(|name| way.get(name).is_some()));
        }
    }
}

/// Replaces the descriptions of single failures by `4XX` and `5XX`, with the content of `default`.
fn unite_failures(responses: &mut Map<String, Value>) {
    let Some(failure) = responses.remove("default") else { return };
    responses.retain(|status, _| !status.starts_with(['4', '5']));
    responses.insert("4XX".to_owned(), failure.clone());
    responses.insert("5XX".to_owned(), failure);
}

/// Removes the bodies of the successful responses if these bodies differ.
fn unite_successes(responses: &mut Map<String, Value>) {
    let mut successes: Vec<&mut Value> =
        responses.iter_mut().filter(|(status, _)| status.starts_with('2')).map(|(_, value)| value).collect();
    let first = successes.first().and_then(|response| response.get("content")).cloned();
    if successes.iter().any(|response| response.get("content") != first.as_ref()) {
        for response in &mut successes {
            response.as_object_mut().map(|fields| fields.remove("content"));
        }
    }
}

/// Turns named schemas that are a choice of texts, such as an address or a name, into plain texts: a
/// generated client could not write such a choice into a path.
fn unite_texts(schemas: &mut Map<String, Value>) {
    let others = schemas.clone();
    let is_text = |choice: &Value| {
        let referred = choice.get("$ref").and_then(|reference| others.get(component(reference)?));
        referred.unwrap_or(choice)["type"] == "string"
    };
    for schema in schemas.values_mut().filter_map(Value::as_object_mut) {
        if schema.get("anyOf").and_then(Value::as_array).is_some_and(|choices| choices.iter().all(is_text)) {
            schema.remove("anyOf");
            schema.insert("type".to_owned(), "string".into());
        }
    }
}

fn convert(schema: &mut Map<String, Value>) {
    UNKNOWN.iter().for_each(|field| drop(schema.remove(*field)));
    if let Some(only) = schema.remove("const") {
        schema.insert("enum".to_owned(), json!([only]));
    }
    if let Some(Value::Array(examples)) = schema.remove("examples")
        && let Some(first) = examples.into_iter().next()
    {
        schema.insert("example".to_owned(), first);
    }
    limit(schema, "minimum", "exclusiveMinimum");
    limit(schema, "maximum", "exclusiveMaximum");
    // Generators read limits as signed 64-bit numbers, so a larger limit is left out; the field `format` still gives
    // the range.
    if schema.get("maximum").is_some_and(|maximum| maximum.is_u64() && !maximum.is_i64()) {
        schema.remove("maximum");
    }
    // Generators cannot express a default that is an object.
    if schema.get("default").is_some_and(Value::is_object) {
        schema.remove("default");
    }
    separate_null(schema);
    separate_types(schema);
    enclose_reference(schema);
}

/// Writes an exclusive limit as 3.0 does: an inclusive limit with a flag.
fn limit(schema: &mut Map<String, Value>, inclusive: &str, exclusive: &str) {
    let Some(bound) = schema.get(exclusive).filter(|bound| bound.is_number()).cloned() else { return };
    schema.insert(inclusive.to_owned(), bound);
    schema.insert(exclusive.to_owned(), true.into());
}

/// Replaces the type null by the flag `nullable`.
fn separate_null(schema: &mut Map<String, Value>) {
    let mut nullable = false;
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        let before = types.len();
        types.retain(|of| of != "null");
        nullable |= types.len() < before;
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    } else if schema.get("type").is_some_and(|of| of == "null") {
        schema.remove("type");
        schema.insert("enum".to_owned(), json!([null]));
        nullable = true;
    }
    for choice in ["anyOf", "oneOf"] {
        let Some(Value::Array(choices)) = schema.get_mut(choice) else { continue };
        let before = choices.len();
        // This is the schema of null in the form into which this function has already rewritten inner schemas.
        choices.retain(|choice| *choice != json!({"enum": [null], "nullable": true}));
        nullable |= choices.len() < before;
        if let [_] = choices.as_slice()
            && let Some(only) = schema.remove(choice)
        {
            schema.insert("allOf".to_owned(), only);
        }
    }
    if nullable {
        schema.insert("nullable".to_owned(), true.into());
    }
}

/// Replaces a list of types by a choice of schemas with one type each.
fn separate_types(schema: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = schema.get("type").cloned() else { return };
    schema.remove("type");
    let texts: Vec<_> = OF_TEXTS.iter().filter_map(|field| schema.remove_entry(*field)).collect();
    let numbers: Vec<_> = OF_NUMBERS.iter().filter_map(|field| schema.remove_entry(*field)).collect();
    let choice = |of: Value| {
        let limits = match of.as_str() {
            Some("string") => texts.clone(),
            Some("integer" | "number") => numbers.clone(),
            _ => Vec::new(),
        };
        let mut choice = Map::from_iter(limits);
        choice.insert("type".to_owned(), of);
        Value::Object(choice)
    };
    let choices: Vec<Value> = types.into_iter().map(choice).collect();
    schema.insert("oneOf".to_owned(), choices.into());
}

/// Moves a `$ref` into `allOf`, since 3.0 ignores all fields beside a `$ref`.
fn enclose_reference(schema: &mut Map<String, Value>) {
    if schema.len() > 1
        && let Some(reference) = schema.remove("$ref")
    {
        let parts = schema.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(parts) = parts {
            parts.insert(0, json!({"$ref": reference}));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(schema: Value) -> Value {
        let document = json!({"components": {"schemas": {"It": schema}}});
        downgrade(&document)["components"]["schemas"]["It"].take()
    }

    #[test]
    fn null_is_a_mark() {
        let cases = [
            (json!({"type": ["string", "null"]}), json!({"type": "string", "nullable": true})),
            (
                json!({"anyOf": [{"$ref": "#/x"}, {"type": "null"}], "description": "d"}),
                json!({"allOf": [{"$ref": "#/x"}], "description": "d", "nullable": true}),
            ),
            (
                json!({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}),
                json!({"oneOf": [{"type": "string"}, {"type": "integer"}], "nullable": true}),
            ),
            (json!({"type": "null"}), json!({"enum": [null], "nullable": true})),
        ];
        for (newer, older) in cases {
            assert_eq!(converted(newer.clone()), older, "{newer}");
            let inside = json!({"properties": {"a": newer}});
            assert_eq!(converted(inside)["properties"]["a"], older);
        }
    }

    #[test]
    fn several_types_are_a_choice() {
        let size = json!({"type": ["string", "integer"], "minimum": 0, "pattern": "^x$", "description": "d"});
        let choices = json!([{"type": "string", "pattern": "^x$"}, {"type": "integer", "minimum": 0}]);
        assert_eq!(converted(size), json!({"description": "d", "oneOf": choices}));
        let three = converted(json!({"type": ["boolean", "number", "null"], "maximum": 2}));
        let choices = json!([{"type": "boolean"}, {"type": "number", "maximum": 2}]);
        assert_eq!(three, json!({"nullable": true, "oneOf": choices}));
    }

    #[test]
    fn a_choice_of_texts_is_a_text() {
        let reference = json!({"$ref": "#/components/schemas/Name"});
        let document = json!({"components": {"schemas": {
            "Name": {"type": "string", "pattern": "^n$"},
            "Owner": {"description": "d", "anyOf": [reference, {"type": "string", "pattern": "^o$"}]},
            "Other": {"anyOf": [reference, {"type": "integer"}]}
        }}});
        let older = downgrade(&document)["components"]["schemas"].take();
        assert_eq!(older["Owner"], json!({"description": "d", "type": "string"}));
        assert_eq!(older["Other"], document["components"]["schemas"]["Other"]);
    }

    #[test]
    fn limits_constants_and_examples_have_other_forms() {
        let cases = [
            (json!({"exclusiveMinimum": 3}), json!({"minimum": 3, "exclusiveMinimum": true})),
            (json!({"exclusiveMaximum": 3.5}), json!({"maximum": 3.5, "exclusiveMaximum": true})),
            (json!({"maximum": u64::MAX}), json!({})),
            (json!({"maximum": i64::MAX}), json!({"maximum": i64::MAX})),
            (json!({"const": "a"}), json!({"enum": ["a"]})),
            (json!({"examples": [1, 2]}), json!({"example": 1})),
            (json!({"examples": []}), json!({})),
            (json!({"default": {"term": 0}}), json!({})),
            (json!({"default": 0}), json!({"default": 0})),
            (json!({"$schema": "x", "propertyNames": {}}), json!({})),
        ];
        for (newer, older) in cases {
            assert_eq!(converted(newer.clone()), older, "{newer}");
        }
    }

    #[test]
    fn a_reference_stands_alone() {
        let alone = json!({"$ref": "#/x"});
        assert_eq!(converted(alone.clone()), alone);
        let described = json!({"$ref": "#/x", "description": "d", "default": 1});
        assert_eq!(converted(described), json!({"allOf": [alone], "description": "d", "default": 1}));
    }

    #[test]
    fn tokens_identify_and_certificates_do_not() {
        let document = json!({
            "paths": {"/x": {"get": {"security": [{"token": []}, {"certificate": []}]}}},
            "components": {"securitySchemes": {"token": {"type": "http"}, "certificate": {"type": "mutualTLS"}}}
        });
        let older = downgrade(&document);
        assert_eq!(older["openapi"], "3.0.3");
        assert_eq!(older["components"]["securitySchemes"], json!({"token": {"type": "http"}}));
        assert_eq!(older["paths"]["/x"]["get"]["security"], json!([{"token": []}]));
    }

    #[test]
    fn each_operation_has_one_type_of_success_and_one_of_failure() {
        let of = |responses: Value| {
            let document = json!({"paths": {"/x": {"get": {"responses": responses}}}});
            downgrade(&document)["paths"]["/x"]["get"]["responses"].take()
        };
        let (a, b) = (json!({"content": {"application/json": {}}}), json!({"content": {"text/plain": {}}}));
        let failures = json!({"200": a, "default": b, "307": b, "404": b, "431": {}, "500": b});
        assert_eq!(of(failures), json!({"200": a, "307": b, "4XX": b, "5XX": b}));
        assert_eq!(of(json!({"201": a, "202": a})), json!({"201": a, "202": a}));
        assert_eq!(of(json!({"202": a, "204": {}})), json!({"202": {}, "204": {}}));
        assert_eq!(of(json!({"200": a, "202": b})), json!({"200": {}, "202": {}}));
    }
}
