//! The picture of `--plot`: loss above, images a second below, both over the steps, as SVG.

use std::io;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use crate::report::Row;
use crate::report::file::{self, FileError};

const FLAG: &str = "--plot";
const SIZE: (u32, u32) = (900, 640);
const LOSS_HEIGHT: u32 = 380;
const FONT: &str = "sans-serif";
/// Up to this many rows every step gets a dot.
const DOTS: usize = 100;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// Checks, before training, that the picture can be written; leaves nothing behind.
///
/// # Errors
/// [`FileError::Write`] naming the file.
pub fn check(path: &Path) -> Result<(), FileError> {
    file::check(FLAG, path)
}

/// Draws the rows, in the order of their steps, and puts the whole picture in place at once. Values that are not
/// finite leave a gap.
///
/// # Errors
/// [`FileError`] naming the file.
pub fn write(path: &Path, rows: &[Row]) -> Result<(), FileError> {
    let svg = draw(rows).map_err(|source| FileError::Draw { path: path.to_path_buf(), source })?;
    file::replace(FLAG, path, svg.as_bytes())
}

fn draw(rows: &[Row]) -> Result<String, DrawingAreaErrorKind<io::Error>> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (upper, lower) = root.split_vertically(LOSS_HEIGHT);
    let points = |value: fn(&Row) -> f64| rows.iter().map(|row| (row.step as f64, value(row))).collect::<Vec<_>>();
    let losses = points(|row| row.loss);
    let rates = points(|row| row.images_per_s);
    panel(&upper, "loss", &losses, extent(&losses, None), &BLUE)?;
    panel(&lower, "images/s", &rates, extent(&rates, Some(0.0)), &RED)?;
    root.present()?;
    drop((root, upper, lower));
    Ok(svg)
}

/// One curve with its axes.
fn panel(area: &Area<'_>, name: &str, points: &[(f64, f64)], values: Range<f64>, colour: &RGBColor) -> Drawn {
    let steps = match (points.first(), points.last()) {
        (Some(first), Some(last)) if first.0 < last.0 => first.0..last.0,
        (Some(only), _) => only.0 - 0.5..only.0 + 0.5,
        _ => 0.0..1.0,
    };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(steps, values)?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc(name)
        .x_label_formatter(&|step| format!("{step}"))
        .axis_desc_style((FONT, 16))
        .label_style((FONT, 13))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let dot = if points.len() <= DOTS { 2 } else { 0 };
    for curve in points.split(|point| !point.1.is_finite()).filter(|curve| !curve.is_empty()) {
        chart.draw_series(LineSeries::new(curve.iter().copied(), colour).point_size(dot))?;
    }
    Ok(())
}

/// The range of the finite values with a little room, from `floor` where given.
fn extent(points: &[(f64, f64)], floor: Option<f64>) -> Range<f64> {
    let finite = points.iter().map(|point| point.1).filter(|value| value.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
    let (low, high) = if low <= high { (floor.unwrap_or(low), high) } else { (0.0, 1.0) };
    let room = 0.05 * (high - low).max(1e-3 * high.abs()).max(1e-9);
    (if floor.is_some() { low } else { low - room })..high + room
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn rows(count: u64) -> Vec<Row> {
        let row = |step: u64| {
            let at = step as f64;
            let loss = 2.3 / (1.0 + at);
            Row { step, loss, grad_norm: at, images_per_s: 100.0 + at, step_ms: 9.0, sync_ms: 1.0 }
        };
        (0..count).map(row).collect()
    }

    fn curves(svg: &str, colour: &str) -> usize {
        svg.matches(&format!("<polyline fill=\"none\" opacity=\"1\" stroke=\"{colour}\"")).count()
    }

    #[test]
    fn both_curves_are_drawn_with_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.svg");
        check(&path).unwrap();
        write(&path, &rows(300)).unwrap();
        let svg = fs::read_to_string(&path).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["loss", "images/s", "step"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text} is missing");
        }
        assert_eq!((curves(&svg, "#0000FF"), curves(&svg, "#FF0000")), (1, 1));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn few_or_odd_rows_are_drawn_too() {
        for count in [0, 1, 2] {
            draw(&rows(count)).unwrap();
        }
        let mut broken = rows(9);
        broken[4].loss = f64::NAN;
        broken[8].loss = f64::INFINITY;
        let svg = draw(&broken).unwrap();
        assert_eq!((curves(&svg, "#0000FF"), curves(&svg, "#FF0000")), (2, 1));
        assert!(!svg.contains("NaN"));
        broken.iter_mut().for_each(|row| row.loss = f64::NAN);
        assert_eq!(curves(&draw(&broken).unwrap(), "#0000FF"), 0);
    }

    #[test]
    fn ranges_hold_all_values_with_room() {
        assert_eq!(extent(&[], None).end, 1.0 + 0.05);
        let range = extent(&[(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)], None);
        assert!((range.start - 0.9).abs() < 1e-12 && (range.end - 3.1).abs() < 1e-12);
        assert_eq!(extent(&[(0.0, 5.0)], Some(0.0)).start, 0.0);
        let flat = extent(&[(0.0, 2.0)], None);
        assert!(flat.start < 2.0 && flat.end > 2.0);
    }

    #[test]
    fn an_unwritable_place_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/run.svg");
        for error in [check(&path).unwrap_err(), write(&path, &rows(3)).unwrap_err()] {
            assert!(error.to_string().starts_with("--plot ") && error.to_string().contains("run.svg"), "{error}");
        }
    }
}
