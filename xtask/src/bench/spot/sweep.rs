//! What becomes of the figures in other markets, and with other patience.

use anyhow::Result;
use gamekeeper::rules::viability;
use jiff::SignedDuration;

use super::compared;
use super::market::Terms;

/// None of those that are reported.
const SEEDS: std::ops::RangeInclusive<u64> = 1001..=1006;

pub(super) fn run() -> Result<()> {
    println!(
        "{:<44} {:>8} {:>12} {:>8} {:>12} {:>8}",
        "", "to plain", "clairvoyant", "cost", "cost, plain", "floor s"
    );
    let (market, rules) = (Terms::default(), viability::Terms::default());
    line("as it is", market, rules)?;
    let half_lives = [5, 10, 20, 30, 45, 90];
    for minutes in half_lives {
        let rules = viability::Terms { half_life: SignedDuration::from_mins(minutes), ..rules };
        line(&format!("the rules' half-life: {minutes} minutes"), market, rules)?;
    }
    for minutes in [1, 3, 10, 30] {
        let rules = viability::Terms { least: SignedDuration::from_mins(minutes), ..rules };
        line(&format!("the rules' least time: {minutes} minutes"), market, rules)?;
    }
    for minutes in [10.0, 20.0, 80.0, 160.0] {
        let market = Terms { between_waves: minutes * 60.0, ..market };
        line(&format!("a wave every {minutes} minutes"), market, rules)?;
    }
    for hit in [0.25, 0.75, 1.0] {
        line(&format!("a wave takes {hit} of the nodes"), Terms { hit, ..market }, rules)?;
    }
    for hours in [1.0, 6.0] {
        line(&format!("crunches of {hours} hours"), Terms { crunch: hours * 3600.0, ..market }, rules)?;
    }
    for hours in [4.0, 24.0] {
        line(
            &format!("calm for {hours} hours between them"),
            Terms { calm: hours * 3600.0, ..market },
            rules,
        )?;
    }
    for out_share in [0.05, 0.3, 0.9] {
        line(
            &format!("nothing to be had for {out_share} of a crunch"),
            Terms { out_share, ..market },
            rules,
        )?;
    }
    for together in [0.5, 0.99] {
        line(&format!("{together} of a wave within 3 minutes"), Terms { together, ..market }, rules)?;
    }
    line("interruptions by themselves", market.alone(), rules)
}

fn line(what: &str, market: Terms, rules: viability::Terms) -> Result<()> {
    let compared = compared::over(SEEDS, "", market, rules)?.compared();
    println!(
        "{what:<44} {:>8.3} {:>12.3} {:>8.3} {:>12.3} {:>8}",
        compared.lost_ratio,
        compared.clairvoyant_ratio,
        compared.cost_ratio,
        compared.cost_ratio_plain,
        compared.floor_broken_seconds
    );
    Ok(())
}
