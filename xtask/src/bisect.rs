//! Bisects two dumps: prints the layer and the tap that `firstdiff::bisect` finds.

use anyhow::Result;
use firstdiff::Comparison;
use firstdiff::PairArgs;
use firstdiff::bisect::bisect;
use firstdiff::output::{exit_code, print};
use firstdiff::render::compare::render;
use firstdiff::render::screen::Detail;

pub(crate) fn run(args: PairArgs) -> Result<u8> {
    let session = args.open(&firstdiff::session::TOOLS)?;
    let bisection = bisect(&session)?;
    for probe in &bisection.probes {
        print(&format!(
            "{:<20} {}\n",
            probe.tap.to_string(),
            if probe.status.differs() { "differs" } else { "agrees" }
        ))?;
    }
    print("\n")?;
    let code = exit_code(&bisection.report.verdict);
    let judged = Comparison { session, report: bisection.report, why: None, recorder_gives: None };
    print(render(&judged, Detail::Folded).as_str())?;
    Ok(code)
}
