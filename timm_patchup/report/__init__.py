"""Numbers over seeds, tables, pages and figures: what runs, evaluations and studies show, and how it looks."""
