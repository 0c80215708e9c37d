//! The picture of `--plot`: bus bandwidth over bytes, both logarithmic, a curve for each operation, as SVG.

use std::fs;
use std::io;
use std::path::Path;

use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use super::Problem;
use super::report::Row;

const SIZE: (u32, u32) = (900, 560);
const FONT: &str = "sans-serif";

/// Checks, before anything is measured, that the picture has a place.
///
/// # Errors
/// When the folder is not there, or the path is a folder.
pub(crate) fn check(path: &Path) -> Result<(), Problem> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        return Err(Problem::flag(format!("--plot {}: is a folder", path.display())));
    }
    if !folder.is_dir() {
        return Err(Problem::flag(format!("--plot {}: there is no folder {}", path.display(), folder.display())));
    }
    Ok(())
}

/// Draws the rows, a curve for each operation.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(path: &Path, rows: &[Row]) -> Result<(), Problem> {
    let problem = |error: String| Problem { text: format!("--plot {}: {error}", path.display()), code: 1 };
    let svg = draw(rows).map_err(|error| problem(error.to_string()))?;
    fs::write(path, svg).map_err(|error| problem(error.to_string()))
}

fn draw(rows: &[Row]) -> Result<String, DrawingAreaErrorKind<io::Error>> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.bytes > 0 && row.busbw > 0.0 && row.busbw.is_finite()).collect();
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(log(&rows, |row| row.bytes as f64, 2.0), log(&rows, |row| row.busbw, 10.0))?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc("bus bandwidth, GB/s")
        .x_label_formatter(&|bytes| bytes_of(*bytes))
        .y_label_formatter(&|rate| format!("{rate}"))
        .axis_desc_style((FONT, 16))
        .label_style((FONT, 13))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (index, curve) in rows.chunk_by(|a, b| a.operation == b.operation).enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let points = curve.iter().map(|row| (row.bytes as f64, row.busbw));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
            .label(curve[0].operation)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).label_font((FONT, 14)).draw()?;
    root.present()?;
    drop(chart);
    drop(root);
    Ok(svg)
}

/// A logarithmic axis over all values, with room.
fn log(rows: &[&Row], value: fn(&Row) -> f64, base: f64) -> LogCoord<f64> {
    let fold = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
    let (low, high) = rows.iter().map(|row| value(row)).fold((f64::INFINITY, 0.0), fold);
    let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
    (low / 1.5..high * 1.5).log_scale().base(base).into()
}

fn bytes_of(bytes: f64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit as f64);
    unit.map_or_else(|| format!("{bytes}"), |(unit, name)| format!("{} {name}", (bytes / unit as f64).round()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(operation: &'static str, bytes: usize, busbw: f64) -> Row {
        Row {
            operation,
            ranks: 2,
            bytes,
            count: bytes / 4,
            dtype: "f32",
            op: None,
            median_us: 1.0,
            p99_us: 2.0,
            p10_us: 0.5,
            b2b_us: 1.5,
            algbw: busbw,
            busbw,
            wrong: None,
        }
    }

    #[test]
    fn each_operation_has_a_curve_and_a_name() {
        let rows: Vec<Row> = [("all-reduce", 2.0), ("broadcast", 5.0)]
            .into_iter()
            .flat_map(|(name, rate)| (0..8).map(move |i| row(name, 8 << (3 * i), rate * (i + 1) as f64)))
            .chain([row("barrier", 0, 0.0)])
            .collect();
        let svg = draw(&rows).unwrap();
        for text in ["all-reduce", "broadcast", "bus bandwidth, GB/s", "bytes"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text} is missing");
        }
        assert!(!svg.contains("\nbarrier\n") && !svg.contains("NaN"));
    }

    #[test]
    fn no_points_and_one_point_are_drawn_too() {
        draw(&[]).unwrap();
        draw(&[row("all-reduce", 8, 0.01)]).unwrap();
    }

    #[test]
    fn a_place_that_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        check(&dir.path().join("a.svg")).unwrap();
        for path in [dir.path().to_path_buf(), dir.path().join("missing/a.svg")] {
            assert!(check(&path).unwrap_err().text.contains(path.to_str().unwrap()));
        }
    }
}
