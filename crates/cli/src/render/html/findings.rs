//! Renders a card for each fault: its cause or law with the proof, what to change, and a picture where something was measured.

use firstdiff_compare::number;

use crate::render::html::Page;
use crate::render::html::pictures::Picture;
use crate::report::{CauseCertainty, Diagnosis, Explained, WrongOperation};
use crate::words::shorten;

/// One fault.
pub(crate) struct Card {
    pub(crate) place: String,
    /// `cause proved`, `law measured` ..
    pub(crate) sure: &'static str,
    pub(crate) title: String,
    /// The known facts, by name.
    pub(crate) lines: Vec<(&'static str, String)>,
    pub(crate) picture: Option<Picture>,
}

/// The most names in a list.
const MOST: usize = 12;

/// The faults on a page: those that were explained, else those of the replayed operations, else that of the comparison.
pub(crate) fn cards(page: &Page<'_>) -> Vec<Card> {
    if let Some(report) = page.explained {
        return report.findings.iter().map(Card::from_explained).collect();
    }
    if let Some(report) = page.replayed {
        return report.findings.iter().map(Card::from_operation).collect();
    }
    let first = page.compared.and_then(|(_, report)| report.first_divergence.as_ref());
    let cause = first.and_then(|first| Some((first, first.why.as_ref()?)));
    cause.map(|(first, why)| Card::new(first.place.clone(), first.op.clone(), why)).into_iter().collect()
}

impl Card {
    /// Whether one of its lines has this text.
    pub(crate) fn has_line(&self, text: &str) -> bool {
        self.lines.iter().any(|(_, line)| line == text)
    }

    fn new(place: String, op: String, known: &Diagnosis) -> Card {
        let mut lines: Vec<(&'static str, String)> = Vec::new();
        let law = known.measured.as_ref();
        let (sure, title) = match (known.matched, law) {
            _ if let Some(other) = &known.arithmetic => ("another arithmetic", other.words.join("; ")),
            _ if !known.misrecorded.is_empty() => {
                ("off, and what reads it is right", "no operation is to be blamed yet".to_owned())
            }
            _ if !known.taken_back.is_empty() => ("no mistake", "what is off here is taken back".to_owned()),
            (CauseCertainty::Reproduced | CauseCertainty::Seen, _) => {
                ("cause proved", known.summary.clone().unwrap_or_default())
            }
            (CauseCertainty::Measured, Some(law)) if law.status == "table" => ("numbers, no law", law.words.clone()),
            (CauseCertainty::Measured, Some(law)) => ("law measured", law.words.clone()),
            (CauseCertainty::Closest, _) => ("unknown", format!("{op}: no cause is proved")),
            _ => ("unknown", format!("{op}: no mistake that was tried reproduces it")),
        };
        let mut line = |name: &'static str, text: Option<String>| lines.extend(text.map(|text| (name, text)));
        line("proof", known.proof.clone().or_else(|| law.map(|law| law.proof())));
        line("measured", law.filter(|_| known.matched == CauseCertainty::Reproduced).map(|law| law.words.clone()));
        let same = law.map(|law| shorten(&law.equivalent, 3)).filter(|same| !same.is_empty());
        line("the same here", same);
        line("fix", known.fix.clone());
        Card { place, sure, title, lines, picture: law.and_then(|law| Picture::from_data(law.data.as_ref()?)) }
    }

    fn from_explained(explained: &Explained) -> Card {
        let mut card = Card::new(explained.place.clone(), explained.op.clone(), &explained.diagnosis);
        let mut line = |name: &'static str, text: Option<String>| card.lines.extend(text.map(|text| (name, text)));
        let is_open = matches!(explained.diagnosis.matched, CauseCertainty::Unknown | CauseCertainty::Closest);
        line(
            "how far",
            Some(format!("NMSE {}", number(explained.base_nmse))).filter(|_| explained.diagnosis.proof.is_none()),
        );
        line("why", explained.reason.clone().filter(|_| is_open));
        line("where", explained.positions_in_words.clone());
        line("not told", Some(explained.untold_in_words.clone()).filter(|places| !places.is_empty()));
        line("not recorded", Some(shorten(&explained.span, MOST)).filter(|names| !names.is_empty()));
        line("note", explained.note.clone());
        line("next", explained.next.clone());
        card
    }

    fn from_operation(operation: &WrongOperation) -> Card {
        let mut card = Card::new(operation.place.clone(), operation.op.clone(), &operation.diagnosis);
        let mut line = |name: &'static str, text: Option<String>| card.lines.extend(text.map(|text| (name, text)));
        line("how far", operation.worst_nmse.map(|nmse| format!("NMSE {}", number(nmse))));
        line("why", operation.note.clone());
        for other in &operation.together {
            line("and", other.summary.clone());
        }
        line("not recorded", Some(shorten(&operation.span, MOST)).filter(|names| !names.is_empty()));
        operation.notes.iter().for_each(|note| line("note", Some(note.clone())));
        card
    }
}
