//! A variant under one load, while it is measured.

use std::{thread, time::Duration};

use tollgate_benches::BoxError;

use crate::{
    Options, Place,
    app::App,
    loads::{Load, RAW, leaves_work},
    measured::Row,
    round, wrk,
};

pub(crate) struct Entrant {
    pub(crate) row: Row,
    /// `None` of the bare call, of what cannot do what the load asks, and of what broke.
    app: Option<App>,
}

impl Entrant {
    pub(crate) const fn new(variant: &'static str) -> Self {
        Self {
            row: Row {
                variant,
                unable: None,
                broke: None,
                appended: None,
                samples: Vec::new(),
            },
            app: None,
        }
    }

    /// Notes an error, and is out then; the error goes on only if Redis does not answer either.
    pub(crate) fn attempt(
        &mut self,
        place: &mut Place,
        what: impl FnOnce(&mut Place, &mut Self) -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        if self.row.unable.is_some() || self.row.broke.is_some() {
            return Ok(());
        }
        if let Err(error) = what(place, self) {
            let () = place.server.run(&["PING"])?;
            let last_words = self.app.take().map(|mut app| app.last_words());
            let last_words = last_words.filter(|it| !it.is_empty());
            let why = [Some(error.to_string()), last_words];
            let why = why.into_iter().flatten().collect::<Vec<_>>().join("; ");
            eprintln!("\nbench: {} broke: {why}", self.row.variant);
            self.row.broke = Some(why);
        }
        Ok(())
    }

    pub(crate) fn start(
        &mut self,
        load: &Load,
        redis: &str,
        options: &Options,
    ) -> Result<(), BoxError> {
        if self.row.variant == RAW {
            return Ok(());
        }
        match App::start(load, self.row.variant, redis, options.threads)? {
            Ok(app) => {
                let app = self.app.insert(app);
                if !load.warm_up.is_zero() {
                    let share = if options.quick { 3 } else { 1 };
                    wrk::run(load, app.port(), load.warm_up / share)?;
                }
            }
            Err(why) => self.row.unable = Some(why),
        }
        Ok(())
    }

    /// What it writes.
    pub(crate) fn append(&mut self, place: &mut Place, load: &Load) -> Result<(), BoxError> {
        if let Some(app) = &self.app {
            self.row.appended = Some(round::appended(&mut place.server, load, app)?);
        }
        Ok(())
    }

    pub(crate) fn round(
        &mut self,
        place: &mut Place,
        load: &Load,
        options: &Options,
    ) -> Result<(), BoxError> {
        let (server, variant) = (&mut place.server, self.row.variant);
        let sample = match &self.app {
            Some(app) => round::round(server, load, variant, app, options.lengths())?,
            None => round::raw(server, load, options.lengths())?,
        };
        self.row.samples.push(sample);
        if leaves_work(variant) {
            // What it still owes Redis comes within a second, and is not the next one's.
            thread::sleep(Duration::from_millis(1_100));
        }
        Ok(())
    }
}
