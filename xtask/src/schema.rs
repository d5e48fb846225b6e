//! Generates docs/reference/schema/report.json from the types of the reports, and docs/reference/schema.md and docs/reference/schema-parts.md from that; or
//! compares them.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

const HEAD: &str = "# Reports in JSON

Every command writes its report with `--json FILE`; `-` is standard output. This page has the keys of each command's report, and [Parts of reports](schema-parts.md) \
the keys of what they hold. [report.json](schema/report.json) has the same as JSON Schema (draft 2020-12); it is generated from the types \
in `firstdiff::report`, and tests check the report of every command against it.

Every report has `command`, the command's name, and `schema`, the version of this form: 2. A key is always there unless it is *optional*. A number that is not finite, or was \
not measured, is null. [For programs](commands.md#for-programs) lists the keys that were renamed since schema 1.

Written by `cargo xtask schema` from the types in `firstdiff::report`.
";

const PARTS: &str = "# Parts of reports

The keys of what the [reports](schema.md) hold. A key is always there unless it is *optional*.

Written by `cargo xtask schema` from the types in `firstdiff::report`.
";

/// Keys of every report, described at the head of the page.
const EVERYWHERE: [&str; 2] = ["command", "schema"];

const SCHEMA: &str = "schema/report.json";

/// Writes the schema and the two pages, or with `check` fails if they differ.
pub(crate) fn run(check: bool) -> Result<u8> {
    write([(SCHEMA, of_the_types()?)], check)?;
    write_pages(check)
}

/// Writes the two pages of the schema that is there, or with `check` fails if they differ.
pub(crate) fn write_pages(check: bool) -> Result<u8> {
    let schema = std::fs::read_to_string(crate::root()?.join("docs/reference").join(SCHEMA))?;
    let [commands, parts] = pages(&serde_json::from_str(&schema)?)?;
    write([("schema.md", commands), ("schema-parts.md", parts)], check)
}

fn write<const N: usize>(files: [(&str, String); N], check: bool) -> Result<u8> {
    let docs = crate::root()?.join("docs/reference");
    for (name, text) in files {
        let path = docs.join(name);
        if !check {
            crate::docs::write(&path, &text)?;
        } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
            bail!("docs/reference/{name} does not say what the types of the reports say; run `cargo xtask schema`");
        }
    }
    Ok(0)
}

/// What `report-schema` prints: a program of its own, as only with the feature `schema` the types can describe themselves.
fn of_the_types() -> Result<String> {
    let program =
        ["run", "--quiet", "--locked", "--package", "xtask", "--features", "schema", "--bin", "report-schema"];
    let output = Command::new(env!("CARGO")).args(program).current_dir(crate::root()?).output()?;
    ensure!(output.status.success(), "cargo {}:\n{}", program.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
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

/// The definitions whose keys a definition includes.
fn composition(schema: &Value) -> Option<String> {
    let all = list(&schema["allOf"], ", ").map(|all| format!("With all keys of {all}."));
    let any = list(&schema["anyOf"], " or ").map(|any| format!("With all keys of one of these: {any}."));
    let both: Vec<String> = all.into_iter().chain(any).collect();
    (!both.is_empty()).then(|| both.join(" "))
}

/// A line for each key, and for each alternative.
fn keys(schema: &Value) -> String {
    let always = |key: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|name| name == key));
    let line = |(key, schema): (&String, &Value)| {
        let optional = if always(key) { "" } else { "optional, " };
        format!("- `{key}` ({optional}{}){}\n", kind(schema), description(schema))
    };
    let is_everywhere = |key: &str, schema: &Value| EVERYWHERE.contains(&key) && schema.get("const").is_some();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let lines = properties.filter(|(key, schema)| !is_everywhere(key, schema)).map(line);
    lines.chain(schema["oneOf"].as_array().into_iter().flatten().map(alternative)).collect()
}

/// `- `exact`: Bit for bit.`; with keys, by the one that tells it from the others, and a line for each of them.
fn alternative(schema: &Value) -> String {
    let what = description(schema);
    let Some(mut own) = schema["properties"].as_object().cloned() else {
        return format!("- `{}`{what}\n", schema["const"].as_str().unwrap_or_default());
    };
    let tag = own.iter().find(|(_, value)| value.get("const").is_some()).map(|(key, value)| (key.clone(), kind(value)));
    let (key, value) = tag.unwrap_or_default();
    own.remove(&key);
    let keys = keys(&serde_json::json!({"properties": own, "required": schema["required"]}));
    let keys: String = keys.lines().map(|line| format!("  {line}\n")).collect();
    format!("- with `{key}` {value}{what}\n{keys}")
}

fn description(schema: &Value) -> String {
    schema["description"].as_str().map(|what| format!(": {what}")).unwrap_or_default()
}

/// The type of a value, in words.
fn kind(schema: &Value) -> String {
    if let Some(name) = referred(schema) {
        return format!("[{name}](schema-parts.md#{name})");
    }
    if let Some(one) = list(&schema["anyOf"], " or ") {
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
        super::write_pages(true).unwrap();
    }
}
