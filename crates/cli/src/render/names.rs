//! Writes a table of proposed names.

use std::path::Path;

use firstdiff_compare::{Alias, Naming, Proposal, ProposalBasis, number};

/// The table as TOML, each line with its evidence.
pub(crate) fn table(naming: &Naming, reference: &Path, candidate: &Path) -> String {
    let mut text = format!(
        "# Names of {} by the content of {}, proposed by `firstdiff align`: look at them before you keep them.\n",
        candidate.display().to_string().escape_debug(),
        reference.display().to_string().escape_debug()
    );
    text += &naming.notes.iter().map(|note| format!("# {note}\n")).collect::<String>();
    let key = |name: &str| toml_string(name);
    for Proposal { name, tap, evidence } in &naming.proposals {
        let line = format!("{} = {}", key(name), key(tap));
        text += &match evidence {
            ProposalBasis::Content { nmse, next, matched, of } => {
                let next = next.as_ref().map(|next| format!(", next {} {}", next.tap, number(next.nmse)));
                let (nmse, next) = (number(*nmse), next.unwrap_or_default());
                format!("{line}  # the same values: NMSE {nmse}{next}; {matched} of {of} of this name\n")
            }
            ProposalBasis::Size { elements } => {
                format!("# {line}  # by size alone ({elements} elements); the values differ\n")
            }
            ProposalBasis::Words => format!("# {line}  # a guess by its words and size; the values differ\n"),
            ProposalBasis::Order => {
                format!("# {line}  # a guess by the order of writing and size; the values differ\n")
            }
        };
    }
    for Alias { name, same_as } in &naming.aliases {
        text += &format!("# {} is the same as {}\n", key(name), key(same_as));
    }
    for name in &naming.unknown {
        text += &format!("# {} = \"?\"\n", key(name));
    }
    text
}

/// Text as a TOML key.
fn toml_string(text: &str) -> String {
    let plain = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", plain.collect::<String>())
}
