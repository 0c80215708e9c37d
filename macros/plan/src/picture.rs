//! Plans as pictures: a text table and an SVG image. The same plan gives the same bytes.

use super::plan::{Action, Phase, Plan, Work};
use super::simulate::Span;
use std::fmt::Write as _;

/// Columns of the widest picture.
const MOST_COLUMNS: u64 = 1000;
/// Pixels.
const COLUMN: f64 = 28.0;
const ROW: usize = 30;
const MARGIN: usize = 80;
const FONT: &str = r#"font-family="monospace" font-size="11""#;
/// The look of waiting.
const HATCH: &str = concat!(
    r#"<pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse">"#,
    r##"<path d="M0 6L6 0" stroke="#bbb"/></pattern>"##
);

pub(super) fn text(plan: &Plan) -> String {
    let unit = unit(plan);
    let rows: Vec<Vec<String>> = (0..plan.ranks()).map(|rank| row(plan, rank, unit)).collect();
    let width = rows.iter().flatten().map(String::len).max().unwrap_or(0) + 1;
    let digits = (plan.ranks() - 1).to_string().len();
    let mut text = title(plan) + "\n";
    for (rank, row) in rows.iter().enumerate() {
        let cells: String = row.iter().map(|cell| format!("{cell:width$}")).collect();
        text += format!("rank {rank:digits$} |{cells}").trim_end();
        text.push('\n');
    }
    text + &format!("{}; . waits, = transfers\n{}\n", legend(plan, unit), plan.loss())
}

/// What `rank` does at the first tick of each column.
fn row(plan: &Plan, rank: usize, unit: u64) -> Vec<String> {
    let spans = plan.timeline().spans(rank);
    let columns = plan.timeline().makespan().div_ceil(unit);
    let mut next = 0;
    let cell = |column: u64| {
        let tick = column * unit;
        next += spans[next..].iter().take_while(|span| span.end <= tick).count();
        spans.get(next).map(|span| cell(plan, span, tick))
    };
    (0..columns).map_while(cell).collect()
}

fn cell(plan: &Plan, span: &Span, tick: u64) -> String {
    match span.action {
        _ if tick < span.begin => ".".into(),
        Action::Compute(work) => label(plan, work),
        _ => "=".into(),
    }
}

/// `F3`, and `F3.1` for the second stage of a rank that has several.
fn label(plan: &Plan, work: Work) -> String {
    let phase = match work.phase {
        Phase::Forward => 'F',
        Phase::Backward | Phase::BackwardInput => 'B',
        Phase::BackwardWeight => 'W',
    };
    match plan.schedule().chunks() {
        1 => format!("{phase}{}", work.microbatch),
        _ => format!("{phase}{}.{}", work.microbatch, work.stage / plan.ranks()),
    }
}

fn title(plan: &Plan) -> String {
    let bubble = plan.timeline().bubble();
    format!(
        "{}: {} ranks, {} microbatches, {} ticks; idle {:.1} % of the time ({:.1} % of the work)",
        plan.schedule(),
        plan.ranks(),
        plan.microbatches(),
        plan.timeline().makespan(),
        100.0 * bubble.of_total(),
        100.0 * bubble.of_ideal(),
    )
}

fn legend(plan: &Plan, unit: u64) -> String {
    let phases = match (plan.schedule().trains(), plan.schedule().splits_backward()) {
        (false, _) => "F forward",
        (true, false) => "F forward, B backward",
        (true, true) => "F forward, B backward for inputs, W for weights",
    };
    let chunk = if plan.schedule().chunks() > 1 { "; .n: n-th stage of the rank, from 0" } else { "" };
    format!("a column is {unit} tick{}; {phases}{chunk}", if unit == 1 { "" } else { "s" })
}

/// Ticks a column: what divides all times, unless that makes the picture too wide.
fn unit(plan: &Plan) -> u64 {
    let spans = (0..plan.ranks()).flat_map(|rank| plan.timeline().spans(rank));
    let common = spans.fold(0, |unit, span| greatest_divisor(greatest_divisor(unit, span.begin), span.end)).max(1);
    common.max(plan.timeline().makespan().div_ceil(MOST_COLUMNS))
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

pub(super) fn svg(plan: &Plan) -> String {
    let unit = unit(plan);
    let scale = COLUMN / unit as f64;
    let title = escape(&format!("{}; {}", title(plan), plan.loss()));
    let columns = plan.timeline().makespan() as f64 * scale;
    // The title's letters are about 7 pixels wide.
    let width = (MARGIN as f64 + columns + 10.0).max(20.0 + 7.0 * title.len() as f64);
    let height = 40 + ROW * plan.ranks() + 30;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height}" {FONT}>
<title>{title}</title>
<defs>{HATCH}</defs>
<rect width="100%" height="100%" fill="#fff"/>
<text x="10" y="20">{title}</text>
"##
    );
    for rank in 0..plan.ranks() {
        let y = 35 + ROW * rank;
        // Writing to a string cannot fail.
        let _ = writeln!(svg, r#"<text x="10" y="{}">rank {rank}</text>"#, y + 17);
        plan.timeline().spans(rank).iter().for_each(|span| svg_span(&mut svg, plan, rank, span, scale));
    }
    let _ = writeln!(
        svg,
        r#"<text x="10" y="{}">{}</text>"#,
        height - 10,
        escape(&(legend(plan, unit) + "; hatched: waits, grey: transfers"))
    );
    svg + "</svg>\n"
}

fn svg_span(svg: &mut String, plan: &Plan, rank: usize, span: &Span, scale: f64) {
    if span.begin > span.arrived {
        svg_box(svg, rank, [span.arrived, span.begin], scale, "url(#wait)", &format!("waits to {}", span.action));
    }
    if span.end == span.begin {
        return;
    }
    let fill = match span.action {
        Action::Compute(work) => colour(work),
        _ => "#888".into(),
    };
    let (x, width) = svg_box(svg, rank, [span.begin, span.end], scale, &fill, &span.action.to_string());
    let Action::Compute(work) = span.action else { return };
    let label = label(plan, work);
    if width >= 7.0 * label.len() as f64 {
        let (x, y) = (x + width / 2.0, 35 + ROW * rank + 17);
        let _ = writeln!(svg, r#"<text x="{x:.2}" y="{y}" text-anchor="middle">{}</text>"#, escape(&label));
    }
}

/// Draws `ticks` of a row and gives its left edge and width in pixels.
fn svg_box(svg: &mut String, rank: usize, ticks: [u64; 2], scale: f64, fill: &str, what: &str) -> (f64, f64) {
    let [begin, end] = ticks;
    let (x, width) = (MARGIN as f64 + begin as f64 * scale, (end - begin) as f64 * scale);
    let (y, height) = (35 + ROW * rank, ROW - 4);
    let tip = escape(&format!("rank {rank}, ticks {begin} to {end}: {what}"));
    let tip = format!("<title>{tip}</title>");
    let _ = writeln!(
        svg,
        r##"<rect x="{x:.2}" y="{y}" width="{width:.2}" height="{height}" fill="{fill}" stroke="#fff">{tip}</rect>"##,
    );
    (x, width)
}

/// A hue for each microbatch, far from its neighbours' (the golden angle); lighter for forward, darker for weights.
fn colour(work: Work) -> String {
    let hue = (work.microbatch as u64 * 137 % 360) as f64;
    let lightness = match work.phase {
        Phase::Forward => 0.8,
        Phase::Backward | Phase::BackwardInput => 0.65,
        Phase::BackwardWeight => 0.5,
    };
    let [r, g, b] = [0.0, 8.0, 4.0].map(|offset| {
        let place = (offset + hue / 30.0) % 12.0;
        let share = (place - 3.0).min(9.0 - place).clamp(-1.0, 1.0);
        (255.0 * (lightness - 0.6 * f64::min(lightness, 1.0 - lightness) * share)) as u8
    });
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_is_escaped() {
        assert_eq!(escape(r#"a<b> & "c" 'd'"#), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
    }

    #[test]
    fn neighbours_and_phases_differ_in_colour() {
        let of = |phase, microbatch| colour(Work { phase, stage: 0, microbatch });
        let mut all: Vec<String> = (0..16)
            .flat_map(|m| [Phase::Forward, Phase::Backward, Phase::BackwardWeight].map(|phase| of(phase, m)))
            .collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 48);
    }

    #[test]
    fn divisors() {
        assert_eq!([greatest_divisor(0, 6), greatest_divisor(12, 18), greatest_divisor(7, 3)], [6, 6, 1]);
    }
}
