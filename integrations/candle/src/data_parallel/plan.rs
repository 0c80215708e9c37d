//! Which parameter travels in which bucket.
//!
//! ```text
//! order of the backward pass   z.weight  z.bias | y.weight ... | ...  a.bias
//! buckets, reused every step   [first, small  ] [ 25 MiB      ] ... [ rest ]
//! ```
//!
//! The order comes from names and segments alone, so it is the same on every rank, and buckets start in it.

use super::options::Options;
use super::parameters::Parameters;
use super::wire::Flat;
use crate::digest::Digest;
use crate::error::{Error, Result};
use candle_core::DType;

/// A parameter's place in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) parameter: usize,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// A run of parameters that is reduced in one call.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) dtype: DType,
    pub(super) places: Vec<Place>,
    pub(super) len: usize,
    /// Its memory, once there is some; away while it is being reduced.
    pub(super) memory: Option<Flat>,
}

/// All buckets, in the order in which they start.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) buckets: Vec<Bucket>,
    /// Parameters of each segment; empty for a model that is not cut.
    pub(super) segments: Vec<Vec<usize>>,
    /// Of the segments' parameter names.
    pub(super) digest: u64,
}

impl Plan {
    /// For a model that is not cut: last names first.
    pub(super) fn whole(parameters: &Parameters, options: &Options) -> Plan {
        let order = (0..parameters.len()).rev().collect();
        Plan { buckets: buckets(parameters, options, order), segments: Vec::new(), digest: 0 }
    }

    /// For a model in segments: the last segment first.
    pub(super) fn segmented(parameters: &Parameters, options: &Options, names: &[Vec<String>]) -> Result<Plan> {
        let mut owner = vec![None; parameters.len()];
        let mut segments = vec![Vec::new(); names.len()];
        for (segment, names) in names.iter().enumerate() {
            for name in names {
                let unknown = || Error::invalid(format!("segment {segment} has `{name}`, which is no parameter"));
                let at = parameters.position(name).ok_or_else(unknown)?;
                if let Some(other) = owner[at].replace(segment) {
                    let problem = format!("`{name}` is in segments {other} and {segment}; a parameter belongs to one");
                    return Err(Error::invalid(problem));
                }
                segments[segment].push(at);
            }
        }
        if let Some(at) = owner.iter().position(Option::is_none) {
            return Err(Error::invalid(format!("the parameter `{}` is in no segment", parameters.name(at))));
        }
        segments.iter_mut().for_each(|segment| segment.sort_unstable());
        let order = segments.iter().rev().flat_map(|segment| segment.iter().rev().copied()).collect();
        let buckets = buckets(parameters, options, order);
        Ok(Plan { buckets, segments, digest: digest(names) })
    }
}

/// Of the cut of a model.
pub(super) fn digest(names: &[Vec<String>]) -> u64 {
    let mut digest = Digest::new();
    for segment in names {
        digest.word(segment.len() as u64);
        segment.iter().for_each(|name| digest.text(name));
    }
    digest.finish()
}

fn buckets(parameters: &Parameters, options: &Options, order: Vec<usize>) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for parameter in order {
        let var = parameters.var(parameter);
        let (dtype, len) = (options.wire.dtype(var.dtype()), var.elem_count());
        let limit = if buckets.len() <= 1 { options.first_bucket_bytes } else { options.bucket_bytes };
        let fits = |bucket: &&mut Bucket| bucket.dtype == dtype && (bucket.len + len) * dtype.size_in_bytes() <= limit;
        match buckets.last_mut().filter(fits) {
            Some(bucket) => {
                bucket.places.push(Place { parameter, start: bucket.len, len });
                bucket.len += len;
            }
            None => {
                let places = vec![Place { parameter, start: 0, len }];
                buckets.push(Bucket { dtype, places, len, memory: None });
            }
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    fn parameters(sizes: &[(&str, usize, DType)]) -> Parameters {
        let var = |&(name, len, dtype): &(&str, usize, DType)| {
            (name.to_string(), Var::zeros(len, dtype, &Device::Cpu).unwrap())
        };
        Parameters::new(sizes.iter().map(var)).unwrap()
    }

    fn names(plan: &Plan, parameters: &Parameters) -> Vec<Vec<String>> {
        let bucket = |b: &Bucket| b.places.iter().map(|p| parameters.name(p.parameter).to_string()).collect();
        plan.buckets.iter().map(bucket).collect()
    }

    #[test]
    fn last_names_come_first_and_buckets_keep_their_limits() {
        let sizes = [("a", 30, DType::F32), ("b", 4, DType::F32), ("c", 4, DType::F32), ("d", 3, DType::F32)];
        let parameters = parameters(&sizes);
        let options = Options::default().bucket_bytes(32).first_bucket_bytes(12);
        let plan = Plan::whole(&parameters, &options);
        assert_eq!(names(&plan, &parameters), [vec!["d"], vec!["c", "b"], vec!["a"]]);
        let starts: Vec<usize> = plan.buckets[1].places.iter().map(|place| place.start).collect();
        assert_eq!(starts, [0, 4]);
    }

    #[test]
    fn dtypes_do_not_share_a_bucket() {
        let parameters = parameters(&[("a", 1, DType::F32), ("b", 1, DType::F64), ("c", 1, DType::F64)]);
        let plan = Plan::whole(&parameters, &Options::default());
        assert_eq!(names(&plan, &parameters), [vec!["c", "b"], vec!["a"]]);
        let wired = Plan::whole(&parameters, &Options::default().wire(super::super::Wire::Bf16));
        assert_eq!(wired.buckets.len(), 1);
    }

    #[test]
    fn segments_must_cover_all_once() {
        let parameters = parameters(&[("a", 1, DType::F32), ("b", 1, DType::F32), ("c", 1, DType::F32)]);
        let cut = |names: &[&[&str]]| {
            let names: Vec<Vec<String>> =
                names.iter().map(|names| names.iter().map(|name| name.to_string()).collect()).collect();
            Plan::segmented(&parameters, &Options::default(), &names).map_err(|error| error.to_string())
        };
        let plan = cut(&[&["b", "a"], &["c"]]).unwrap();
        assert_eq!(names(&plan, &parameters), [["c", "b", "a"]]);
        assert!(cut(&[&["a"], &["c"]]).unwrap_err().contains("`b` is in no segment"));
        assert!(cut(&[&["a", "b", "c"], &["c"]]).unwrap_err().contains("segments 0 and 1"));
        assert!(cut(&[&["a", "b", "c", "x"]]).unwrap_err().contains("`x`, which is no parameter"));
    }
}
