//! The evaluation as one HTML page that needs no scripts, fonts or other files.

use maud::{Markup, PreEscaped, html};

use super::section::{Cell, Grid, Picture, Section};
use super::{Evaluation, values};
use cxloe_measure::report::Report;
use cxloe_measure::report::html::{self, entry};

/// Style rules of this page, in addition to those of every report. Pictures have a white ground for use outside of the
/// page; the last rule removes this ground, so that the pictures suit a dark screen.
const OWN_STYLE: &str = "
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: 1rem 0; } nav a { color: inherit; }
section { border-top: 2px solid var(--grid); margin-top: 2.5rem; }
section td:first-child, section th:first-child { font-family: inherit; }
section .words { text-align: left; white-space: normal; min-width: 6rem; }
ul.findings { max-width: 45rem; padding-left: 1.2rem; }
caption { text-align: left; font-weight: 600; padding: 1rem 0 .3rem; }
section figure { max-width: 52rem; margin-top: 1rem; } figure .legend { font-size: .85rem; }
dl { max-width: 45rem; } dt { font-weight: 600; } dd { margin: 0 0 .6rem; }
.warning { border-left: .3rem solid var(--bad); padding-left: .7rem; }
[fill=\"#FFFFFF\"] { fill: none; }
";

/// Returns the page with `sections` of the evaluation `found`, measured under the conditions of `report`.
pub fn page(found: &Evaluation, report: &Report, sections: &[Section]) -> String {
    let paper = values();
    html::page(
        "CXL over Ethernet: the paper's evaluation",
        OWN_STYLE,
        &html! {
            h1 { "The paper's evaluation, from this system" }
            p {
                "The figures and tables of " cite { (paper.title) } " (" (paper.id) "), each beside the same thing measured or \
                 simulated with this software. Every section says what of it can be compared, and what cannot."
            }
            p class="quiet" { (report.headline()) }
            @for warning in warnings(found) { p class="warning" { (warning) } }
            nav {
                @for section in sections {
                    a href={ "#" (section.id) } { (section.title.split(':').next().unwrap_or_default()) } " "
                }
            }
            @for section in sections { (self::section(section)) }
        },
    )
}

/// Returns the reasons to distrust this run's figures, to be shown before the first section.
pub(super) fn warnings(found: &Evaluation) -> Vec<String> {
    let mut all = Vec::new();
    if found.debug_build {
        all.push(
            "This program was built without optimisation: its times are longer than they have to be.".into(),
        );
    }
    if found.quick {
        all.push(
            "A quick run: a tenth of the operations, so that tails and rare cases are not to be relied on."
                .into(),
        );
    }
    all.extend(found.left_out.iter().map(|what| format!("Left out: {what}")));
    all
}

fn section(section: &Section) -> Markup {
    html! { section id=(section.id) {
        h2 { (section.title) }
        @if !section.findings.is_empty() {
            ul class="findings" { @for finding in &section.findings { li { (finding) } } }
        }
        @for picture in &section.pictures { (figure(picture)) }
        @for grid in &section.grids { (table(grid)) }
        dl {
            dt { "Comparable" } dd { (section.comparable) }
            dt { "Not comparable" } dd { (section.not_comparable) }
        }
        p class="quiet" { "The paper's values: " (section.source) }
    } }
}

fn figure(picture: &Picture) -> Markup {
    html! { figure {
        h3 { (picture.title) }
        (PreEscaped(&picture.svg))
        @if !picture.legend.is_empty() {
            ul class="legend" { @for (colour, words) in &picture.legend { (entry(*colour, words)) } }
        }
    } }
}

fn table(grid: &Grid) -> Markup {
    // A column with text in any row is aligned left, as text is read.
    let is_words = |column: usize| grid.rows.iter().any(|row| matches!(row.get(column), Some(Cell::Text(_))));
    let class: Vec<Option<&str>> =
        (0..grid.columns.len()).map(|column| is_words(column).then_some("words")).collect();
    html! { div class="scroll" { table {
        caption { (grid.caption) }
        thead { tr { @for ((head, _), class) in grid.columns.iter().zip(&class) { th class=[*class] { (head) } } } }
        tbody {
            @for row in &grid.rows {
                tr { @for (cell, class) in row.iter().zip(&class) { td class=[*class] { (cell.shown()) } } }
            }
        }
    } } }
}
