//! Generates docs/reference/schema.md and docs/reference/schema-parts.md from docs/reference/schema/report.json, or compares them.

use anyhow::{Context, Result, bail};
use serde_json::Value;

const HEAD: &str = "# Reports in JSON

Every command writes its report with `--json FILE`; `-` is standard output. This page has the keys of each command's report, and [Parts of reports](schema-parts.md) \
the keys of what they hold. [report.json](schema/report.json) has the same as JSON Schema (draft 2020-12); tests check the report of every command against it. \
In Rust the types are in `firstdiff::report`.

Every report has `command`, the command's name, and `schema`, the version of this form: 2. A key is always there unless it is *optional*. A number that is not finite, or was \
not measured, is null. [For programs](commands.md#for-programs) lists the keys that were renamed since schema 1.

Written by `cargo xtask mistakes` from docs/reference/schema/report.json.
";

const PARTS: &str = "# Parts of reports

The keys of what the [reports](schema.md) hold. A key is always there unless it is *optional*.

Written by `cargo xtask mistakes` from docs/reference/schema/report.json.
";

/// Keys of every report, described at the head of the page.
const EVERYWHERE: [&str; 2] = ["command", "schema"];

/// Writes the two pages, or with `check` fails if they differ.
pub(crate) fn run(check: bool) -> Result<u8> {
    let docs = crate::root()?.join("docs/reference");
    let schema = std::fs::read_to_string(docs.join("schema/report.json"))?;
    let pages = pages(&serde_json::from_str(&schema)?).context("docs/reference/schema/report.json")?;
    for (name, text) in ["schema.md", "schema-parts.md"].iter().zip(pages) {
        let path = docs.join(name);
        if !check {
            crate::docs::write(&path, &text)?;
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            bail!(
                "docs/reference/{name} does not say what docs/reference/schema/report.json says; run `cargo xtask mistakes`"
            );
        }
    }
    Ok(0)
}

/// A section for each command, in the order of the schema; and one for each part.
fn pages(schema: &Value) -> Result<[String; 2]> {
    let definitions = schema["$defs"].as_object().context("no definitions")?;
    let commands: Vec<&str> = schema["anyOf"].as_array().into_iter().flatten().filter_map(referred).collect();
    let mut text = HEAD.to_owned();
    for name in &commands {
        text += &section(name, definitions.get(*name).with_context(|| format!("no definition {name}"))?);
    }
    let mut parts = PARTS.to_owned();
    for (name, part) in definitions.iter().filter(|(name, _)| !commands.contains(&name.as_str())) {
        let (what, made) = (part["description"].as_str().map(str::to_owned), composition(part));
        let about: Vec<String> = what.into_iter().chain(made).collect();
        let about = if about.is_empty() { String::new() } else { format!("{}\n\n", about.join(" ")) };
        parts += &format!("\n## {name}\n\n{about}{}", keys(part));
    }
    // Links to the report of another command go to the page of commands.
    let link_commands = |page: String| {
        commands
            .iter()
            .fold(page, |page, name| page.replace(&format!("schema-parts.md#{name})"), &format!("schema.md#{name})")))
    };
    Ok([text, parts].map(link_commands))
}

/// The name of the definition that a schema refers to.
fn referred(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

fn section(name: &str, schema: &Value) -> String {
    let what = schema["description"].as_str().unwrap_or_default();
    let made = composition(schema).map(|made| format!("\n{made}\n")).unwrap_or_default();
    format!("\n## {name}\n\n`{what}`\n{made}\n{}", keys(schema))
}

/// The allowed values of a definition, or the definitions whose keys it includes.
fn composition(schema: &Value) -> Option<String> {
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
        return Some(format!("One of {}.", words.join(", ")));
    }
    let all = list(&schema["allOf"], ", ").map(|all| format!("With all keys of {all}."));
    all.or_else(|| Some(format!("With all keys of one of these: {}.", list(&schema["anyOf"], " or ")?)))
}

/// A line for each key.
fn keys(schema: &Value) -> String {
    let always = |key: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|name| name == key));
    let line = |(key, schema): (&String, &Value)| {
        let what = schema["description"].as_str().map(|what| format!(": {what}")).unwrap_or_default();
        let optional = if always(key) { "" } else { "optional, " };
        format!("- `{key}` ({optional}{}){what}\n", kind(schema))
    };
    let is_everywhere = |key: &str, schema: &Value| EVERYWHERE.contains(&key) && schema.get("const").is_some();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.filter(|(key, schema)| !is_everywhere(key, schema)).map(line).collect()
}

/// The type of a value, in words.
fn kind(schema: &Value) -> String {
    if let Some(name) = referred(schema) {
        return format!("[{name}](schema-parts.md#{name})");
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
    fn the_pages_say_what_the_schema_says() {
        super::run(true).unwrap();
    }
}
