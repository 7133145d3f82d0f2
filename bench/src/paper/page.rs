//! The evaluation as one HTML page: no script, no font, no file beside it.

use super::section::{Cell, Grid, Picture, Section};
use super::{Evaluation, values};
use crate::report::Report;
use crate::report::chart;
use crate::report::html::{STYLE, colours, escape, hex};

/// What the page needs besides the style of every report.
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

/// The page: `sections` of `found`, measured as `report` says.
pub fn page(found: &Evaluation, report: &Report, sections: &[Section]) -> String {
    let paper = values();
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str("<title>CXL over Ethernet: the paper's evaluation</title>\n");
    page.push_str(&format!("<style>{STYLE}{OWN_STYLE}{}</style>\n</head>\n<body>\n", colours()));
    page.push_str("<h1>The paper's evaluation, from this system</h1>\n");
    page.push_str(&format!(
        "<p>The figures and tables of <cite>{}</cite> ({}), each beside the same thing measured or simulated with this \
         software. Every section says what of it can be compared, and what cannot.</p>\n",
        escape(&paper.title),
        escape(&paper.id)
    ));
    page.push_str(&format!("<p class=\"quiet\">{}</p>\n", escape(&report.headline())));
    for warning in warnings(found) {
        page.push_str(&format!("<p class=\"warning\">{}</p>\n", escape(&warning)));
    }
    page.push_str("<nav>\n");
    for section in sections {
        let name = section.title.split(':').next().unwrap_or_default();
        page.push_str(&format!("<a href=\"#{}\">{}</a>\n", section.id, escape(name)));
    }
    page.push_str("</nav>\n");
    sections.iter().for_each(|section| page.push_str(&self::section(section)));
    page.push_str("</body>\n</html>\n");
    page
}

/// What a reader has to know before the first figure.
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

fn section(section: &Section) -> String {
    let mut text = format!("<section id=\"{}\">\n<h2>{}</h2>\n", section.id, escape(&section.title));
    if !section.findings.is_empty() {
        let items = section.findings.iter().map(|finding| format!("<li>{}</li>\n", escape(finding)));
        text.push_str(&format!("<ul class=\"findings\">\n{}</ul>\n", items.collect::<String>()));
    }
    section.pictures.iter().for_each(|picture| text.push_str(&figure(picture)));
    section.grids.iter().for_each(|grid| text.push_str(&table(grid)));
    text.push_str(&format!(
        "<dl>\n<dt>Comparable</dt><dd>{}</dd>\n<dt>Not comparable</dt><dd>{}</dd>\n</dl>\n\
         <p class=\"quiet\">The paper's values: {}</p>\n</section>\n",
        escape(section.comparable),
        escape(section.not_comparable),
        escape(&section.source)
    ));
    text
}

fn figure(picture: &Picture) -> String {
    let mut text = format!("<figure>\n<h3>{}</h3>\n{}", escape(&picture.title), picture.svg);
    if !picture.legend.is_empty() {
        text.push_str("<ul class=\"legend\">\n");
        for (colour, words) in &picture.legend {
            text.push_str(&format!(
                "<li><svg viewBox=\"0 0 8 8\"><rect width=\"8\" height=\"8\" fill=\"{}\"/></svg>{}</li>\n",
                hex(chart::series(*colour)),
                escape(words)
            ));
        }
        text.push_str("</ul>\n");
    }
    text + "</figure>\n"
}

fn table(grid: &Grid) -> String {
    // A column of words is aligned with its first cell.
    let is_words = |column: usize| grid.rows.iter().any(|row| matches!(row.get(column), Some(Cell::Text(_))));
    let class: Vec<&str> = (0..grid.columns.len())
        .map(|column| if is_words(column) { " class=\"words\"" } else { "" })
        .collect();
    let mut text =
        format!("<div class=\"scroll\"><table>\n<caption>{}</caption>\n<thead><tr>", escape(&grid.caption));
    for ((head, _), class) in grid.columns.iter().zip(&class) {
        text.push_str(&format!("<th{class}>{}</th>", escape(head)));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for row in &grid.rows {
        let cells =
            row.iter().zip(&class).map(|(cell, class)| format!("<td{class}>{}</td>", escape(&cell.shown())));
        text.push_str(&format!("<tr>{}</tr>\n", cells.collect::<String>()));
    }
    text + "</tbody>\n</table></div>\n"
}
