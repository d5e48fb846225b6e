//! Writes a table of proposed names, and what it holds.

use std::path::Path;

use firstdiff_compare::{Alias, Naming, Proposal, ProposalBasis, number};

use crate::render::screen::Screen;

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

/// What a table of names that was written to `path` holds, and what to do with it.
pub(crate) fn written(naming: &Naming, path: &Path) -> Screen {
    let count = |is: fn(&ProposalBasis) -> bool| naming.proposals.iter().filter(|p| is(&p.evidence)).count();
    let sure = count(|e| matches!(e, ProposalBasis::Content { .. }));
    let by_size = count(|e| matches!(e, ProposalBasis::Size { .. }));
    let guessed = count(|e| matches!(e, ProposalBasis::Words | ProposalBasis::Order));
    let seen_once = naming.proposals.iter().filter(|p| holds_other_values(p)).count();
    let mut lines = vec![
        format!("{sure} names found by content, written to {}", path.display()),
        format!("{by_size} known by size alone (comments there), {} unknown", naming.unknown.len()),
    ];
    if guessed > 0 {
        lines.push(format!(
            "{guessed} guessed by words or by the order of writing (comments there: take the # away where a guess is right)"
        ));
    }
    if !naming.aliases.is_empty() {
        lines.push(format!("{} hold the same values as another name", naming.aliases.len()));
    }
    lines.extend(naming.notes.iter().map(|note| format!("note: {note}")));
    if seen_once > 0 {
        lines.push(format!(
            "note: {seen_once} of them hold the reference's values in some layers or steps only: where the candidate departs, the name alone speaks for them"
        ));
    }
    lines.push(
        "next: read it, then compare with --map, or leave it as firstdiff.toml in the dump's folder or in this one"
            .to_owned(),
    );
    let mut screen = Screen::default();
    lines.iter().for_each(|line| screen.line(line));
    screen
}

/// Whether tensors of a proposed name hold other values than its taps.
fn holds_other_values(proposal: &Proposal) -> bool {
    matches!(proposal.evidence, ProposalBasis::Content { matched, of, .. } if matched < of && !proposal.name.contains("{S}"))
}
