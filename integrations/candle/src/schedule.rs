//! Learning rates as functions of the step, so that a resumed run continues exactly.
//!
//! ```
//! use hccl_candle::Schedule;
//! let schedule = Schedule::warmup_cosine(0.1, 5, 105, 0.001)?;
//! assert_eq!(schedule.at(0), 0.1 / 5.0);       // steps count from 0
//! assert_eq!(schedule.at(4), 0.1);
//! assert!((schedule.at(55) - (0.1 + 0.001) / 2.0).abs() < 1e-12);
//! assert_eq!(schedule.at(1000), 0.001);
//! # Ok::<(), hccl_candle::Error>(())
//! ```

use crate::error::{Error, Result};

/// A learning rate for every step.
///
/// ```
/// use hccl_candle::Schedule;
/// let schedule = Schedule::warmup_cosine(0.1, 5, 105, 0.0)?;
/// let (whole, resumed): (Vec<f64>, Vec<f64>) =
///     ((0..200).map(|step| schedule.at(step)).collect(), (60..200).map(|step| schedule.at(step)).collect());
/// assert_eq!(whole[60..], resumed); // nothing to save but the step
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule(Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Constant { lr: f64 },
    WarmupCosine { peak: f64, warmup: u64, total: u64, floor: f64 },
    Step { lr: f64, every: u64, factor: f64 },
}

impl Schedule {
    /// Always the same.
    ///
    /// ```
    /// use hccl_candle::Schedule;
    /// assert_eq!(Schedule::constant(0.1)?.at(12345), 0.1);
    /// assert!(Schedule::constant(f64::NAN).is_err());
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A rate that is negative or not finite.
    pub fn constant(lr: f64) -> Result<Self> {
        Ok(Schedule(Kind::Constant { lr: rate("lr", lr)? }))
    }

    /// Rises in a line over `warmup` steps to `peak`, `peak / warmup` being the first; then falls along half a cosine to
    /// `floor` at step `total`, and stays there.
    ///
    /// ```
    /// use hccl_candle::Schedule;
    /// let schedule = Schedule::warmup_cosine(0.4, 4, 104, 0.0)?;
    /// assert_eq!([0, 1, 3].map(|step| schedule.at(step)), [0.1, 0.2, 0.4]);
    /// assert!((schedule.at(54) - 0.2).abs() < 1e-12 && schedule.at(104) == 0.0);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Rates that are negative or not finite, a floor above the peak, a warm-up that is longer than the whole.
    pub fn warmup_cosine(peak: f64, warmup: u64, total: u64, floor: f64) -> Result<Self> {
        let (peak, floor) = (rate("peak", peak)?, rate("floor", floor)?);
        if floor > peak {
            return Err(Error::invalid(format!("schedule: the floor {floor} is above the peak {peak}")));
        }
        if warmup > total {
            return Err(Error::invalid(format!("schedule: {warmup} steps of warm-up in {total} steps")));
        }
        Ok(Schedule(Kind::WarmupCosine { peak, warmup, total, floor }))
    }

    /// `lr`, times `factor` after every `every` steps.
    ///
    /// ```
    /// use hccl_candle::Schedule;
    /// let schedule = Schedule::step(0.4, 30, 0.5)?; // halved every 30 steps
    /// assert_eq!([0, 29, 30, 60].map(|step| schedule.at(step)), [0.4, 0.4, 0.2, 0.1]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A rate or factor that is negative or not finite, an `every` of 0.
    pub fn step(lr: f64, every: u64, factor: f64) -> Result<Self> {
        if every == 0 {
            return Err(Error::invalid("schedule: a rate that falls every 0 steps"));
        }
        Ok(Schedule(Kind::Step { lr: rate("lr", lr)?, every, factor: rate("factor", factor)? }))
    }

    /// The rate of a step, counted from 0.
    ///
    /// ```
    /// use hccl_candle::Schedule;
    /// let schedule = Schedule::step(1.0, 10, 0.5)?;
    /// assert!(schedule.at(9) > schedule.at(10));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn at(&self, step: u64) -> f64 {
        match self.0 {
            Kind::Constant { lr } => lr,
            Kind::Step { lr, every, factor } => lr * factor.powf((step / every) as f64),
            Kind::WarmupCosine { peak, warmup, .. } if step < warmup => peak * (step + 1) as f64 / warmup as f64,
            Kind::WarmupCosine { total, floor, .. } if step >= total => floor,
            Kind::WarmupCosine { peak, warmup, total, floor } => {
                let part = (step - warmup) as f64 / (total - warmup) as f64;
                floor + (peak - floor) * 0.5 * (1.0 + (std::f64::consts::PI * part).cos())
            }
        }
    }
}

fn rate(name: &str, value: f64) -> Result<f64> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(value),
        false => Err(Error::invalid(format!("schedule: {name} is {value}, must be 0 or more"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warms_up_and_falls() {
        let schedule = Schedule::warmup_cosine(1.0, 4, 12, 0.2).unwrap();
        let rates: Vec<f64> = (0..14).map(|step| schedule.at(step)).collect();
        assert_eq!(&rates[..5], [0.25, 0.5, 0.75, 1.0, 1.0]);
        assert!((rates[8] - 0.6).abs() < 1e-15, "half way: {}", rates[8]);
        assert!(rates[4..13].windows(2).all(|pair| pair[0] > pair[1]));
        assert_eq!(&rates[12..], [0.2, 0.2]);
    }

    #[test]
    fn no_warmup_and_nothing_but_warmup() {
        assert_eq!(Schedule::warmup_cosine(1.0, 0, 10, 0.0).unwrap().at(0), 1.0);
        let all = Schedule::warmup_cosine(1.0, 3, 3, 0.5).unwrap();
        assert_eq!([all.at(2), all.at(3)], [1.0, 0.5]);
    }

    #[test]
    fn falls_in_steps() {
        let schedule = Schedule::step(0.8, 3, 0.5).unwrap();
        let rates: Vec<f64> = (0..7).map(|step| schedule.at(step)).collect();
        assert_eq!(rates, [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]);
        assert_eq!(Schedule::constant(0.3).unwrap().at(1 << 40), 0.3);
    }

    #[test]
    fn refuses_what_cannot_be() {
        assert!(Schedule::constant(-1.0).is_err());
        assert!(Schedule::constant(f64::NAN).is_err());
        assert!(Schedule::warmup_cosine(0.1, 5, 4, 0.0).unwrap_err().to_string().contains("5 steps of warm-up"));
        assert!(Schedule::warmup_cosine(0.1, 0, 4, 0.2).is_err());
        assert!(Schedule::step(0.1, 0, 0.1).is_err());
    }
}
