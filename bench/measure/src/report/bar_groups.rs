//! One picture of several groups of bars: each group has a title and a scale of its own, each bar a name and a text
//! behind it. For a file of its own, so the ground is white.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::ReportError;
use super::chart::{self, Axis};

const TITLE: f64 = 26.0;
const TEXT: f64 = 19.0;
/// Heights in pixels: of the heading, of a group's title, of a bar with its gap, of a bar alone, of a line of notes.
const HEAD: i32 = 60;
const GROUP: i32 = 44;
const ROW: i32 = 28;
const BAR: i32 = 18;
const NOTE: i32 = 26;
/// Columns in pixels: where bars begin, and where the longest ends.
const BEGIN: i32 = 190;
const END: i32 = 620;

/// Bars of one group, on one scale.
#[derive(Debug, Clone, PartialEq)]
pub struct BarGroup {
    pub title: String,
    pub bars: Vec<Bar>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    pub name: String,
    /// Length, in the unit of the group.
    pub value: f64,
    /// Text behind the bar.
    pub text: String,
    /// Number of the colour: that of the result with this number in other pictures.
    pub colour: usize,
}

/// Draws groups of bars below a heading, and notes below the groups.
///
/// # Errors
/// Returns [`ReportError::Picture`] when the picture cannot be drawn.
pub fn bar_groups(heading: &str, groups: &[BarGroup], notes: &[String]) -> Result<String, ReportError> {
    let bars: usize = groups.iter().map(|group| group.bars.len()).sum();
    let height = HEAD + GROUP * groups.len() as i32 + ROW * bars as i32 + NOTE * (notes.len() as i32 + 1);
    chart::picture(heading, height as u32, |area| {
        area.fill(&WHITE)?;
        let label = |words: &str, size: f64, at: (i32, i32), side: HPos| {
            chart::sized_text(area, words, size, at, side, VPos::Center)
        };
        label(heading, TITLE, (480, HEAD / 2), HPos::Center)?;
        let mut top = HEAD;
        for group in groups {
            label(&group.title, TEXT + 2.0, (30, top + GROUP / 2), HPos::Left)?;
            top += GROUP;
            let longest = group.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
            let scale = Axis { low: 0.0, high: longest, logarithmic: false, pixels: (BEGIN, END) };
            for bar in &group.bars {
                let middle = top + ROW / 2;
                label(&bar.name, TEXT, (BEGIN - 12, middle), HPos::Right)?;
                let end = scale.at(bar.value).max(BEGIN + 2);
                let corners = [(BEGIN, middle - BAR / 2), (end, middle + BAR / 2)];
                area.draw(&Rectangle::new(corners, chart::series(bar.colour).filled()))?;
                label(&bar.text, TEXT, (end + 10, middle), HPos::Left)?;
                top += ROW;
            }
        }
        for (row, note) in (0..).zip(notes) {
            label(note, TEXT, (30, top + NOTE * row + NOTE), HPos::Left)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, value: f64) -> Bar {
        Bar { name: name.into(), value, text: format!("{value} <µs>"), colour: 0 }
    }

    #[test]
    fn each_group_has_a_scale_of_its_own() {
        let group = |title: &str, bars| BarGroup { title: title.into(), bars };
        let groups = [
            group("small", vec![bar("a", 1.0), bar("b", 2.0)]),
            group("large", vec![bar("a", 2000.0), bar("b", 1000.0)]),
            group("nothing", vec![]),
        ];
        let svg = bar_groups("heads & tails", &groups, &["a note".into()]).unwrap();
        let colour = "#0072B2";
        let widths: Vec<i32> = svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains(colour))
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(widths.len(), 4, "{svg}");
        assert!(widths[1] == widths[2] && (2 * widths[0] - widths[1]).abs() <= 2, "{widths:?}");
        for words in ["small", "heads &amp; tails", "1 &lt;µs&gt;", "a note"] {
            assert!(svg.contains(words), "{words} in {svg}");
        }
        assert!(bar_groups("none", &[], &[]).is_ok());
    }
}
