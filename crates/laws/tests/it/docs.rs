use std::path::Path;

use firstdiff_laws::Form;

/// Every form is in docs/reference/laws.md, and no other.
#[test]
fn the_list_of_forms_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/laws.md");
    let text = std::fs::read_to_string(path).unwrap();
    let table = text.split("## Forms").nth(1).unwrap().split("## Not claimed").next().unwrap();
    let listed: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let all: Vec<&str> = Form::ALL.iter().map(|form| form.name()).collect();
    assert_eq!(listed, all);
}
