//! Does docs/SCHEMA.md say what docs/schema/report.json says? Writes it anew, or compares.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

const HEAD: &str = "# Reports in JSON

What every command writes with `--json FILE` (`-`: standard output). The whole is [report.json](schema/report.json), JSON Schema of draft 2020-12; tests hold the \
reports of every command to it. In Rust the same are the types of `firstdiff::report`. A number that is not finite, or was not measured, is null. \
[COMMANDS.md](COMMANDS.md#for-programs) has what changed since schema 1. *always*: the key is never absent.

Written by `cargo xtask mistakes` from docs/schema/report.json.
";

/// Writes docs/SCHEMA.md, or fails if it is another.
pub(crate) fn run(check: bool) -> Result<u8> {
    let docs = crate::root()?.join("docs");
    let schema = std::fs::read_to_string(docs.join("schema/report.json"))?;
    let text = page(&serde_json::from_str(&schema)?).context("docs/schema/report.json")?;
    let path = docs.join("SCHEMA.md");
    if !check {
        crate::docs::write(&path, &text)?;
    } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
        bail!("docs/SCHEMA.md does not say what docs/schema/report.json says; run `cargo xtask mistakes`");
    }
    Ok(0)
}

/// The commands first, as the schema lists them, then what they are made of.
fn page(schema: &Value) -> Result<String> {
    let definitions = schema["$defs"].as_object().context("no definitions")?;
    let commands: Vec<&str> = schema["anyOf"].as_array().into_iter().flatten().filter_map(referred).collect();
    let parts = definitions.keys().map(String::as_str).filter(|name| !commands.contains(name));
    let mut text = HEAD.to_owned();
    for name in commands.iter().copied().chain(parts) {
        text += &section(name, definitions.get(name).with_context(|| format!("no definition {name}"))?);
    }
    Ok(text)
}

/// The definition that a schema is.
fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

fn section(name: &str, schema: &Value) -> String {
    let mut text = format!("\n## {name}\n");
    if let Some(what) = schema["description"].as_str() {
        text += &format!("\n{what}\n");
    }
    if let Some(all) = list(&schema["allOf"], ", ") {
        text += &format!("\nWith all keys of {all}.\n");
    }
    if let Some(one) = list(&schema["anyOf"], " or ") {
        text += &format!("\nWith all keys of one of these: {one}.\n");
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
        text += &format!("\nOne of {}.\n", words.join(", "));
    }
    let keys = schema["properties"].as_object().map(|keys| rows(keys, &schema["required"]));
    keys.into_iter().for_each(|rows| text += &format!("\n| key | type | | what |\n|---|---|---|---|\n{rows}"));
    text
}

fn rows(keys: &Map<String, Value>, required: &Value) -> String {
    let always = |key: &str| required.as_array().is_some_and(|all| all.iter().any(|name| name == key));
    let row = |(key, schema): (&String, &Value)| {
        let what = schema["description"].as_str().unwrap_or_default();
        let cells = [format!("`{key}`"), kind(schema), if always(key) { "always" } else { "" }.into(), what.into()];
        format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
    };
    keys.iter().map(row).collect()
}

/// The type of a value, in words.
fn kind(schema: &Value) -> String {
    if let Some(name) = referred(schema) {
        return format!("[{name}](#{name})");
    }
    let also = |key: &str| list(&schema[key], " or ");
    if let Some(one) = also("anyOf").or_else(|| also("allOf")).or_else(|| also("oneOf")) {
        return one;
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    }
    let word = |kind: &str| match kind {
        "array" if schema["items"].is_object() => format!("array of {}", kind_of_items(&schema["items"])),
        kind => kind.to_owned(),
    };
    match &schema["type"] {
        Value::String(one) => word(one),
        Value::Array(all) => all.iter().filter_map(Value::as_str).map(word).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    }
}

fn kind_of_items(schema: &Value) -> String {
    let kind = kind(schema);
    if kind.contains(" or ") { format!("({kind})") } else { kind }
}

fn list(schemas: &Value, between: &str) -> Option<String> {
    Some(schemas.as_array()?.iter().map(kind).collect::<Vec<_>>().join(between))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_says_what_the_schema_says() {
        super::run(true).unwrap();
    }
}
