-- The quotas of tenants, as Tollgate's Postgres source reads them. Apply it once:
--
--     psql "$DATABASE_URL" -v ON_ERROR_STOP=1 --single-transaction -f 0001_tollgate.sql
--
-- or put it among your own migrations. It goes into the first schema of the search path.

-- What is known of a tenant. Its id is what the service's authentication calls it.
CREATE TABLE tollgate_tenants (
    tenant text PRIMARY KEY CHECK (tenant <> ''),
    -- Instead of the key class that the tenant's identity brings. NULL says nothing.
    tier text CHECK (tier <> ''),
    -- Over how many parts its buckets are spread. NULL says nothing.
    shards smallint CHECK (shards BETWEEN 1 AND 255),
    -- The region where it has its whole quotas, where there are several. NULL says nothing.
    home text CHECK (home <> '')
);

-- What single limits let a tenant spend, whatever its tier says. The tenant need not be in the table above.
CREATE TABLE tollgate_overrides (
    tenant text NOT NULL CHECK (tenant <> ''),
    limit_name text NOT NULL DEFAULT 'default' CHECK (limit_name ~ '^[a-z][a-z0-9_.-]{0,63}$'),
    -- Tokens: the largest burst.
    capacity bigint CHECK (capacity BETWEEN 1 AND 1000000000000),
    -- Tokens per second: 1000 per minute are 1000 / 60.0. NaN is above every number here.
    rate double precision CHECK (rate > 0 AND rate <= 1000000),
    word text CHECK (word IN ('unlimited', 'blocked')),
    PRIMARY KEY (tenant, limit_name),
    CONSTRAINT a_quota_or_a_word CHECK (
        CASE WHEN word IS NULL
            THEN capacity IS NOT NULL AND rate IS NOT NULL
            ELSE capacity IS NULL AND rate IS NULL
        END
    ),
    CONSTRAINT fills_within_ten_years CHECK (capacity <= rate * 315360000)
);

-- Tells listening services whose quotas have changed, when the transaction commits. An id that is too long
-- for a notification is left out: then anything may have changed.
CREATE FUNCTION tollgate_notify() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    id text;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM pg_notify('tollgate_quotas', '');
        RETURN NULL;
    END IF;
    FOREACH id IN ARRAY CASE TG_OP
        WHEN 'INSERT' THEN ARRAY[NEW.tenant]
        WHEN 'DELETE' THEN ARRAY[OLD.tenant]
        -- A row may have moved from one tenant to another. Postgres sends the same notification once.
        ELSE ARRAY[OLD.tenant, NEW.tenant]
    END LOOP
        PERFORM pg_notify('tollgate_quotas', CASE WHEN octet_length(id) < 8000 THEN id ELSE '' END);
    END LOOP;
    RETURN NULL;
END
$$;

CREATE TRIGGER tollgate_notify AFTER INSERT OR UPDATE OR DELETE ON tollgate_tenants
    FOR EACH ROW EXECUTE FUNCTION tollgate_notify();
CREATE TRIGGER tollgate_notify_truncate AFTER TRUNCATE ON tollgate_tenants
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate_notify();
CREATE TRIGGER tollgate_notify AFTER INSERT OR UPDATE OR DELETE ON tollgate_overrides
    FOR EACH ROW EXECUTE FUNCTION tollgate_notify();
CREATE TRIGGER tollgate_notify_truncate AFTER TRUNCATE ON tollgate_overrides
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate_notify();
