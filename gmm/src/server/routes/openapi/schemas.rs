//! Schemas of the document, in forms from which generators of clients make types: no boolean schemas, enumerations as
//! `enum`, no null in a query, and each variant of a tagged union as a schema with a name.

use serde_json::{Map, Value, json};

/// Fields of a variant of a tagged union that [`variant_of`] can merge with those of the union.
const MERGED: [&str; 5] = ["description", "type", "properties", "required", "$ref"];

/// Rewrites all schemas of `document`. The rewritten schemas allow the same values, except null in a query.
pub fn simplify(document: &mut Value) {
    each_schema(document, &mut |schema| {
        if *schema == Value::Bool(true) {
            *schema = json!({});
        }
        enumerate(schema);
    });
    for parameter in parameters(document) {
        forbid_null(&mut parameter["schema"]);
    }
    if let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas") {
        unite_narrowed(schemas);
        name_variants(schemas);
    }
}

/// Calls `change` on each schema of `document`; inner schemas come before the schemas that contain them.
pub fn each_schema(document: &mut Value, change: &mut dyn FnMut(&mut Value)) {
    match document {
        Value::Array(items) => items.iter_mut().for_each(|item| each_schema(item, change)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("schema", schema) => inner_first(schema, change),
                    ("schemas", Value::Object(named)) => {
                        named.values_mut().for_each(|schema| inner_first(schema, change));
                    }
                    (_, other) => each_schema(other, change),
                }
            }
        }
        _ => {}
    }
}

fn inner_first(schema: &mut Value, change: &mut dyn FnMut(&mut Value)) {
    if let Value::Object(fields) = schema {
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    properties.values_mut().for_each(|property| inner_first(property, change));
                }
                ("oneOf" | "anyOf" | "allOf", Value::Array(parts)) => {
                    parts.iter_mut().for_each(|part| inner_first(part, change));
                }
                // All versions of OpenAPI permit a boolean here.
                ("additionalProperties", Value::Bool(_)) => {}
                ("items" | "not" | "additionalProperties", inner) => inner_first(inner, change),
                _ => {}
            }
        }
    }
    change(schema);
}

/// Operations of every path and method of `document`.
pub fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    let items = paths.into_iter().flat_map(|paths| paths.values_mut().filter_map(Value::as_object_mut));
    items.flat_map(|methods| methods.values_mut())
}

fn parameters(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let lists = operations(document).filter_map(|operation| operation.get_mut("parameters")?.as_array_mut());
    lists.flatten()
}

/// Turns a choice of texts, each with a description, into an `enum`. The descriptions become a list in the
/// description of the `enum`.
fn enumerate(schema: &mut Value) {
    let Some(Value::Array(choices)) = schema.get("oneOf") else { return };
    let texts: Option<Vec<&str>> = choices.iter().map(|choice| choice.get("const")?.as_str()).collect();
    let Some(texts) = texts.filter(|texts| !texts.is_empty()) else { return };
    let mut description = schema["description"].as_str().unwrap_or_default().to_owned();
    for (choice, text) in choices.iter().zip(&texts) {
        if let Some(what) = choice.get("description").and_then(Value::as_str) {
            let what: Vec<&str> = what.split_whitespace().collect();
            description.push_str(&format!("\n* `{text}`: {}", what.join(" ")));
        }
    }
    *schema = json!({"description": description, "type": "string", "enum": texts});
}

/// Removes null from the values that `schema` allows, since a query cannot express it.
fn forbid_null(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|of| of != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
        choices.retain(|choice| *choice != json!({"type": "null"}));
        if let [Value::Object(only)] = choices.as_slice() {
            let only = only.clone();
            fields.remove("anyOf");
            // The description of the parameter is kept, since it is more precise than that of its type.
            for (key, value) in only {
                fields.entry(key).or_insert(value);
            }
        }
    }
}

/// Merges a named schema that refers to a wider schema and narrows it, such as a text with a narrower pattern, with the
/// fields of the wider schema: generators accept no other fields beside a reference.
fn unite_narrowed(schemas: &mut Map<String, Value>) {
    let others = schemas.clone();
    for schema in schemas.values_mut().filter_map(Value::as_object_mut) {
        let Some(wider) = schema.get("$ref").and_then(|reference| others.get(component(reference)?)) else {
            continue;
        };
        for (key, value) in wider.as_object().into_iter().flatten() {
            schema.entry(key.clone()).or_insert_with(|| value.clone());
        }
        schema.remove("$ref");
    }
}

/// Name of the schema to which a reference leads.
pub fn component(reference: &Value) -> Option<&str> {
    reference.as_str()?.strip_prefix("#/components/schemas/")
}

/// Makes each variant of each tagged union among `schemas` a schema with a name, and the union a choice of these with a
/// discriminator.
fn name_variants(schemas: &mut Map<String, Value>) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let union = &schemas[&name];
        let Some((tag, variants)) = tagged(union) else { continue };
        let named: Option<Vec<(String, String, Value)>> = variants
            .iter()
            .map(|variant| {
                let value = variant["properties"][tag]["const"].as_str()?;
                let named = format!("{name}{}", pascal(value));
                (!schemas.contains_key(&named)).then_some((
                    value.to_owned(),
                    named,
                    variant_of(schemas, union, variant)?,
                ))
            })
            .collect();
        let Some(named) = named else { continue };
        let reference = |name: &String| format!("#/components/schemas/{name}");
        let choices: Vec<Value> = named.iter().map(|(_, name, _)| json!({"$ref": reference(name)})).collect();
        let mapping: Map<String, Value> =
            named.iter().map(|(value, name, _)| (value.clone(), reference(name).into())).collect();
        let discriminator = json!({"propertyName": tag, "mapping": mapping});
        let union =
            json!({"description": union["description"], "oneOf": choices, "discriminator": discriminator});
        schemas.insert(name, union);
        schemas.extend(named.into_iter().map(|(_, name, variant)| (name, variant)));
    }
}

/// The property that distinguishes the variants of `union`, and the variants; `None` if it is no tagged
/// union.
fn tagged(union: &Value) -> Option<(&str, &Vec<Value>)> {
    let variants = union.get("oneOf")?.as_array()?;
    let is_tag = |tag: &str| variants.iter().all(|variant| variant["properties"][tag]["const"].is_string());
    let tag = variants.first()?["properties"].as_object()?.keys().find(|tag| is_tag(tag))?;
    Some((tag, variants))
}

/// Merges `union` and its `variant` into one schema; `None` if one of them has a field that cannot be merged.
fn variant_of(schemas: &Map<String, Value>, union: &Value, variant: &Value) -> Option<Value> {
    let referred = match variant.get("$ref") {
        Some(reference) => Some(schemas.get(component(reference)?)?),
        None => None,
    };
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in [Some(union), referred, Some(variant)].into_iter().flatten() {
        let mergeable = |key: &String| MERGED.contains(&key.as_str()) || (key == "oneOf" && part == union);
        if !part.as_object()?.keys().all(mergeable) {
            return None;
        }
        properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    Some(json!({
        "description": variant["description"],
        "type": "object",
        "properties": properties,
        "required": required,
    }))
}

/// Converts `some_words` to `SomeWords`.
fn pascal(words: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>())
    };
    words.split(['_', '-']).filter_map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `schema` after [`simplify`], as the only one of a document.
    fn simplified(schema: Value) -> Value {
        let mut document = json!({"components": {"schemas": {"It": schema}}});
        simplify(&mut document);
        document["components"]["schemas"].take()
    }

    #[test]
    fn everything_is_written_without_a_boolean() {
        assert_eq!(simplified(json!(true))["It"], json!({}));
        let nested = json!({"properties": {"a": true}, "items": true, "additionalProperties": false});
        let expected = json!({"properties": {"a": {}}, "items": {}, "additionalProperties": false});
        assert_eq!(simplified(nested)["It"], expected);
        let mut document = json!({"paths": {"/x": {"get": {"responses": {"200": {"schema": true}}}}}});
        simplify(&mut document);
        assert_eq!(document["paths"]["/x"]["get"]["responses"]["200"]["schema"], json!({}));
    }

    #[test]
    fn choices_of_texts_are_enumerations() {
        let choices = json!([
            {"const": "mld", "type": "string", "description": "In slices,\n to many."},
            {"const": "sld", "type": "string"}
        ]);
        let expected = json!({
            "description": "Kind.\n* `mld`: In slices, to many.", "type": "string", "enum": ["mld", "sld"]
        });
        assert_eq!(simplified(json!({"description": "Kind.", "oneOf": choices}))["It"], expected);
        let other = json!({"oneOf": [{"const": "mld"}, {"type": "integer"}]});
        assert_eq!(simplified(other.clone())["It"], other);
    }

    #[test]
    fn a_query_has_no_null() {
        let query = |schema: Value| {
            let mut document = json!({"paths": {"/x": {"get": {"parameters": [{"schema": schema}]}}}});
            simplify(&mut document);
            document["paths"]["/x"]["get"]["parameters"][0]["schema"].take()
        };
        let types = json!({"type": ["integer", "null"], "minimum": 0});
        assert_eq!(query(types), json!({"type": "integer", "minimum": 0}));
        let choice = json!({"description": "d", "anyOf": [{"$ref": "#/x"}, {"type": "null"}]});
        assert_eq!(query(choice), json!({"description": "d", "$ref": "#/x"}));
        let several = json!({"type": ["string", "integer"]});
        assert_eq!(query(several.clone()), several);
    }

    #[test]
    fn a_narrower_schema_is_whole() {
        let mut document = json!({"components": {"schemas": {
            "Mac": {"description": "Any.", "type": "string", "pattern": "^.*$"},
            "CnId": {"description": "Unicast.", "pattern": "^x$", "$ref": "#/components/schemas/Mac"}
        }}});
        simplify(&mut document);
        let narrow = json!({"description": "Unicast.", "type": "string", "pattern": "^x$"});
        assert_eq!(document["components"]["schemas"]["CnId"], narrow);
    }

    #[test]
    fn variants_of_a_tagged_union_have_names() {
        let number = json!({"type": "integer"});
        let mut document = json!({"components": {"schemas": {
            "Command": {
                "description": "What to do.", "type": "object",
                "properties": {"seq": number}, "required": ["seq"],
                "oneOf": [
                    {"description": "Map.", "type": "object", "$ref": "#/components/schemas/Mapping",
                        "properties": {"command": {"const": "map_cmem"}}, "required": ["command"]},
                    {"description": "Rest.", "type": "object",
                        "properties": {"command": {"const": "rest"}}, "required": ["command"]}
                ]
            },
            "Mapping": {"type": "object", "properties": {"base": number}, "required": ["base"]}
        }}});
        simplify(&mut document);
        let schemas = &document["components"]["schemas"];
        let [map, rest] =
            ["CommandMapCmem", "CommandRest"].map(|name| format!("#/components/schemas/{name}"));
        let union = json!({
            "description": "What to do.",
            "oneOf": [{"$ref": map}, {"$ref": rest}],
            "discriminator": {"propertyName": "command", "mapping": {"map_cmem": map, "rest": rest}}
        });
        assert_eq!(schemas["Command"], union);
        let variant = json!({
            "description": "Map.", "type": "object",
            "properties": {"seq": number, "base": number, "command": {"const": "map_cmem"}},
            "required": ["seq", "base", "command"]
        });
        assert_eq!(schemas["CommandMapCmem"], variant);
        assert!(schemas["CommandRest"]["properties"].get("base").is_none());
    }

    #[test]
    fn what_cannot_be_merged_stays() {
        let variant = |more: Value| {
            let mut variant = json!({"properties": {"tag": {"const": "a"}}});
            variant.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"type": "object", "oneOf": [variant]})
        };
        for more in [json!({"anyOf": []}), json!({"$ref": "#/components/schemas/None"})] {
            let union = variant(more);
            assert_eq!(simplified(union.clone()), json!({"It": union}));
        }
        // The name `ItA` that the variant would get is already in use.
        let union = variant(json!({}));
        let mut document = json!({"components": {"schemas": {"It": union, "ItA": {}}}});
        simplify(&mut document);
        assert_eq!(document["components"]["schemas"]["It"], union);
    }
}
