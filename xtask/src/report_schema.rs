//! Prints the JSON Schema of the `--json` reports, made from their types in `firstdiff::report`. `cargo xtask schema` writes it to
//! docs/reference/schema/report.json.

use firstdiff::report::{
    Align, Bisect, Compare, CompareAndExplain, Conclusion, Dump, Explain, Gate, Import, Inspect, JudgedIn, Measures,
    Replay, ReplayInputs, SCHEMA, Show, Weights,
};
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use serde_json::{Map, Value, json};

/// Definitions whose keys others include, each before those that it includes.
const PARTS: [&str; 8] =
    ["comparison", "no_answer", "replayed", "tap", "diagnosis", "measures", "judged_in", "conclusion"];

/// The longest value on one line.
const WIDTH: usize = 160;

fn main() {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let commands = [
        ("compare", "REF CAND", generator.subschema_for::<Compare>()),
        ("gate", "REF CAND --baseline FILE", generator.subschema_for::<Gate>()),
        ("bisect", "(MODEL or REF) --run 'ENGINE'", generator.subschema_for::<Bisect>()),
        ("replay", "MODEL CAND", generator.subschema_for::<Replay>()),
        ("explain", "MODEL CAND", generator.subschema_for::<Explain>()),
        ("report", "REF CAND", generator.subschema_for::<CompareAndExplain>()),
        ("weights", "A B", generator.subschema_for::<Weights>()),
        ("inspect", "CAND", generator.subschema_for::<Inspect>()),
        ("align", "REF CAND", generator.subschema_for::<Align>()),
        ("show", "DUMP [TAP]", generator.subschema_for::<Show>()),
        ("dump", "MODEL", generator.subschema_for::<Dump>()),
        ("import", "SOURCE", generator.subschema_for::<Import>()),
    ];
    // Types that are only included, so that nothing refers to them.
    generator.subschema_for::<ReplayInputs>();
    generator.subschema_for::<Measures>();
    generator.subschema_for::<JudgedIn>();
    generator.subschema_for::<Conclusion>();
    let mut definitions = Map::new();
    for (name, mut definition) in generator.take_definitions(false) {
        let schema = <&mut Schema>::try_from(&mut definition).expect("an object");
        RecursiveTransform(simplify).transform(schema);
        // Each command has its own.
        take_out(&mut definition, &["schema".into(), "command".into()]);
        definitions.insert(snake_case(&name), definition);
    }
    for part in PARTS {
        include(&mut definitions, part);
    }
    for (name, arguments, _) in &commands {
        let definition =
            definitions.entry(*name).or_insert_with(|| json!({"type": "object", "allOf": [reference("comparison")]}));
        definition["description"] = format!("firstdiff {name} {arguments}").into();
        definition["properties"]["schema"] = json!({"description": "The version of this form.", "const": SCHEMA});
        definition["properties"]["command"] = json!({"const": name});
        let own = definition["required"].as_array().cloned().unwrap_or_default();
        definition["required"] = ["schema".into(), "command".into()].into_iter().chain(own).collect();
    }
    for (name, definition) in &mut definitions {
        close(definition, PARTS.contains(&name.as_str()));
    }
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("What firstdiff writes with --json, schema {SCHEMA}"),
        "description": "One definition a command. A number that is not finite, or was not measured, is null.",
        "anyOf": commands.map(|(name, ..)| reference(name)),
        "$defs": definitions,
    });
    println!("{}", lines(&schema, ""));
}

/// As JSON: what fits stands on one line.
fn lines(value: &Value, indent: &str) -> String {
    let line = value.to_string();
    let deeper = format!("{indent}  ");
    let [open, close, parts] = match value {
        Value::Object(map) if line.len() > WIDTH => {
            let part = |(key, value): (&String, &Value)| format!("{deeper}{}: {}", json!(key), lines(value, &deeper));
            ["{", "}", &map.iter().map(part).collect::<Vec<_>>().join(",\n")].map(str::to_owned)
        }
        Value::Array(list) if line.len() > WIDTH => {
            let part = |value: &Value| format!("{deeper}{}", lines(value, &deeper));
            ["[", "]", &list.iter().map(part).collect::<Vec<_>>().join(",\n")].map(str::to_owned)
        }
        _ => return line,
    };
    format!("{open}\n{parts}\n{indent}{close}")
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

/// `FirstDivergence` is `first_divergence`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        snake.extend((letter.is_ascii_uppercase() && !snake.is_empty()).then_some('_'));
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// Any float may be null, and a key that may be absent is not. Leaves out how large an integer may be, and line breaks of doc comments.
fn simplify(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
    for keyword in ["format", "minimum", "maximum", "uniqueItems"] {
        schema.remove(keyword);
    }
    if schema.get("additionalProperties") == Some(&Value::Bool(true)) {
        schema.remove("additionalProperties");
    }
    if schema.get("type").is_some_and(|kind| kind == "number") {
        schema.insert("type".into(), json!(["number", "null"]));
    }
    if let Some(name) = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/")) {
        let reference = object(reference(&snake_case(name)));
        schema.ensure_object().extend(reference.into_iter().flatten());
    }
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |key: &str| required.as_array().is_some_and(|all| all.iter().any(|name| name == key));
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten();
    for (_, property) in properties.filter(|(key, _)| !is_required(key)) {
        let Some(property) = property.as_object_mut() else { continue };
        if let Some(Value::Array(all)) = property.remove("anyOf") {
            property.extend(all.into_iter().filter(|one| one["type"] != "null").filter_map(object).flatten());
        }
        let of_type = property.get("type").and_then(|all| all.as_array()?.iter().find(|one| *one != "null").cloned());
        property.extend(of_type.map(|of_type| ("type".to_owned(), of_type)));
    }
}

fn object(value: Value) -> Option<Map<String, Value>> {
    if let Value::Object(map) = value { Some(map) } else { None }
}

/// Removes keys from an object's.
fn take_out(definition: &mut Value, keys: &[String]) {
    if let Some(properties) = definition.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|key, _| !keys.contains(key));
    }
    if let Some(required) = definition.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|key| !keys.iter().any(|name| key == name));
    }
}

/// Definitions that have all keys of a part refer to it: schemars writes out the keys of a flattened type.
fn include(definitions: &mut Map<String, Value>, part: &str) {
    let keys = definitions[part]["properties"].as_object().cloned().unwrap_or_default();
    let names: Vec<String> = keys.keys().cloned().collect();
    for (_, definition) in definitions.iter_mut().filter(|(name, _)| *name != part) {
        if keys.iter().all(|(key, schema)| definition["properties"].get(key) == Some(schema)) {
            take_out(definition, &names);
            let included = definition.as_object_mut().expect("an object").entry("allOf").or_insert(json!([]));
            included.as_array_mut().expect("an array").push(reference(part));
        }
    }
}

/// Refuses keys that no type has. A part is open where others include it, and closed where a value is one.
fn close(schema: &mut Value, is_part: bool) {
    let Some(schema) = schema.as_object_mut() else { return };
    let has = |keyword: &str| schema.contains_key(keyword);
    let by_tag = schema.get("oneOf").is_some_and(|all| all[0].get("properties").is_some());
    let is_reference = PARTS.iter().any(|part| schema.get("$ref") == reference(part).get("$ref"));
    let is_object = has("properties") || has("allOf") || by_tag || is_reference;
    let is_composed = has("allOf") || has("anyOf") || by_tag || is_reference;
    if is_object && !is_part && !has("additionalProperties") {
        let keyword = if is_composed { "unevaluatedProperties" } else { "additionalProperties" };
        schema.insert(keyword.into(), false.into());
    }
    for (keyword, inner) in schema {
        match (keyword.as_str(), inner) {
            ("properties", Value::Object(all)) => all.values_mut().for_each(|inner| close(inner, false)),
            ("anyOf", Value::Array(all)) if !is_object => all.iter_mut().for_each(|inner| close(inner, false)),
            ("items" | "additionalProperties", inner) => close(inner, false),
            _ => {}
        }
    }
}
